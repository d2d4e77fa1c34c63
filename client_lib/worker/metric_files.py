"""Reads metrics from the files that a script writes. The caller's `sink` gets them as lines of
`record.metric_lines`.
"""

import contextlib
import json
import os
import socket
import stat
import time
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple, Union

from client_lib.launcher_protocol.record import WRITTEN, metric_lines, numbers
from client_lib.worker.event_files import EventFile
from client_lib.worker.loop import Loop

_LOOK_S = 0.5
_SHARE = 0.02
"""Longest share of the time that searches for files take."""
_ROWS = 2**16
"""Bytes of a table that are read at once."""
_LAST_LOOKS = 64
"""Blocks that are read after the end."""
_DEPTH = 3
"""Levels of folders that one search sees below a root."""
_ENTRIES = 5000
"""Entries of all folders that one search sees."""
_CSV_MAX = 2**26
"""Bytes of the largest table that is read."""
_CSV = "metrics.csv"
_EVENTS = ".tfevents."
_WRITES_MAX = 64
"""Largest number of write times in one line of the log."""
_APART_S = 0.1
"""Least seconds between two write times."""
_STEPS = ("step", "epoch")

Values = Tuple[Optional[float], Dict[str, float]]
"""A step, and the values that a file has for it."""


class _Written(NamedTuple):
    """An event file, and who writes it."""

    rank: Optional[int]
    file: EventFile


class MetricFiles:
    """Reads event files of TensorBoard, and Lightning's metrics.csv.

    Both are searched below the working directory and the directory for checkpoints. The name of an
    event file has the host and the number of the process that writes the file. A metrics.csv is
    read if it was written since the start and a search finds no second one: two may belong to
    different jobs. A file that can't be read is skipped.
    """

    def __init__(
        self,
        loop: Loop,
        pids: Callable[[], Dict[int, int]],
        folders: List[str],
        since: float,
        sink: Callable[[bytes], None],
        checkpoint_dir: str = "",
    ) -> None:
        """`pids`: the running processes and their ranks. `since`: the start of the ranks, in
        seconds since 1970. `sink` also gets the times of writes to `checkpoint_dir`."""
        self._loop = loop
        self._pids = pids
        self._sink = sink
        self._folders = folders
        self._since = since
        self._checkpoint_dir = checkpoint_dir
        self._written_at = since
        self._events: Dict[str, _Written] = {}
        self._csv: Optional[_Csv] = None
        self._host = socket.gethostname()
        self._ranks: Dict[int, int] = {}  # by pid, also of processes that have ended
        self._search_at = 0.0
        self._again()

    def finish(self) -> None:
        """Read what the ranks have written last."""
        self._search_at = 0.0
        for _ in range(_LAST_LOOKS):
            if not self._look():
                return

    def _again(self) -> None:
        self._look()
        self._loop.call_later(_LOOK_S, self._again)

    def _look(self) -> bool:
        """Pass new values on; False: nothing new was read."""
        self._ranks.update(self._pids())
        begin = time.monotonic()
        if begin >= self._search_at:
            self._search()
            now = time.monotonic()
            self._search_at = now + (now - begin) / _SHARE
        found = [self._pass(written.rank, written.file) for written in self._events.values()]
        if self._csv:
            found.append(self._pass(None, self._csv))
        return any(found)

    def _pass(self, rank: Optional[int], file: "Union[_Csv, EventFile]") -> bool:
        before = file.position
        lines: List[bytes] = []
        # a file may hold other bytes, which any part of the parser refuses
        with contextlib.suppress(Exception):
            for step, values in file.read():
                lines += metric_lines(rank, step, values) if values else []
        if lines:
            self._sink(b"".join(lines))
        return file.position != before

    def _search(self) -> None:
        """Find the event files that were changed since the start, and the table that was made since
        then."""
        self._send_writes()
        tables: Set[str] = set()
        for entry, folder_at in _entries(self._folders):
            is_new_table = entry.name == _CSV and folder_at >= self._since
            if _EVENTS not in entry.name and not is_new_table:
                continue
            try:
                if entry.stat().st_mtime < self._since:
                    continue
            except OSError:
                continue
            path = os.path.realpath(entry.path)
            name = os.path.basename(path)
            if name == _CSV:
                tables.add(path)
            for pid, rank in self._ranks.items():
                is_its_own = ".%s.%d." % (self._host, pid) in name + "."
                if is_its_own and path not in self._events:
                    file = EventFile(path, self._run(path, rank), _opened)
                    self._events[path] = _Written(rank if rank >= 0 else None, file)
        if self._csv is None and len(tables) == 1:
            self._csv = _Csv(tables.pop())

    def _run(self, path: str, rank: int) -> str:
        """The prefix of the names of an event file's values. TensorBoard puts an inner run into a
        folder below the folder of the outer run: the prefix is the path from the outer folder to
        the inner one, with a slash. "": no other file of the rank is in a folder above."""
        folder = os.path.dirname(path)
        of_rank = [path for path, written in self._events.items() if written.rank == rank]
        for other in map(os.path.dirname, of_rank):
            if folder.startswith(other + os.sep):
                return os.path.relpath(folder, other) + "/"
        return ""

    def _send_writes(self) -> None:
        """Send the times of new writes to `checkpoint_dir`, apart from
        files of metrics and logs.
        """
        changes: List[float] = []
        times: List[float] = []
        for entry, _ in _entries([self._checkpoint_dir] if self._checkpoint_dir else []):
            with contextlib.suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                is_metric = _EVENTS in entry.name or entry.name.endswith((_CSV, ".log"))
                is_file = stat.S_ISREG(status.st_mode)
                if status.st_mtime > self._written_at and is_file and not is_metric:
                    changes.append(status.st_mtime)
        for at in sorted(changes):
            if not times or at - times[-1] > _APART_S:
                times.append(round(at, 3))
        if times:
            self._written_at = max(self._written_at, times[-1] + _APART_S)
            self._sink(json.dumps([None, WRITTEN, times[-_WRITES_MAX:]]).encode() + b"\n")


def _entries(roots: List[str]) -> "Iterator[Tuple[os.DirEntry[str], float]]":
    """The content of these folders and of the folders below them, the nearest first. Each
    entry comes with the time of the last change of its folder.
    """
    folders = [(root, 0) for root in roots]
    left = _ENTRIES
    for folder, depth in folders:  # the list grows
        with contextlib.suppress(OSError):
            changed_at = os.stat(folder).st_mtime
            with os.scandir(folder) as entries:
                for entry in entries:
                    left -= 1
                    if left < 0:
                        return
                    yield entry, changed_at
                    if depth == _DEPTH or entry.name.startswith("."):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        folders.append((entry.path, depth + 1))


def _opened(path: str, flags: int) -> int:
    """Open a regular file. Raises OSError: a table is too large, or the file is another kind, such
    as a pipe, which would block the launcher.
    """
    fd = os.open(path, flags | os.O_NONBLOCK)
    status = os.fstat(fd)
    is_too_large = path.endswith(_CSV) and status.st_size > _CSV_MAX
    if stat.S_ISREG(status.st_mode) and not is_too_large:
        return fd
    os.close(fd)
    raise OSError("no regular file, or too large")


class _Csv:
    """A table with a heading. Lightning writes the whole table again when a column is added."""

    def __init__(self, path: str) -> None:
        self.position = 0
        self._path = path
        self._heading = b""
        self._lines = 0  # that were read, without the heading

    def read(self) -> Iterator[Values]:
        with open(self._path, "rb", opener=_opened) as file:
            heading = file.readline()
            is_shorter = os.fstat(file.fileno()).st_size < self.position
            if heading != self._heading or is_shorter:
                known = [file.readline() for _ in range(self._lines)]
                if not all(line.endswith(b"\n") for line in [heading, *known]):
                    return  # the table is being written
                self._heading = heading
                self.position = file.tell()
            file.seek(self.position)
            lines = [line for line in file.readlines(_ROWS) if line.endswith(b"\n")]
        self.position += sum(map(len, lines))
        self._lines += len(lines)
        import csv  # here: few jobs have a table

        for row in csv.DictReader(line.decode("utf-8", "replace") for line in [heading, *lines]):
            values = numbers((name, value) for name, value in row.items() if name)
            steps = [values.pop(name) for name in _STEPS if name in values]
            yield (steps[0] if steps else None), values
