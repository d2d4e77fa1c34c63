"""Reads the metrics of a script that does not report them: from the lines that it prints, the files
that it writes, and what its libraries post. The caller's `sink` gets them as lines of
`format.metric_lines`.
"""

import contextlib
import json
import os
import re
import signal
import socket
import stat
import struct
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple, Union

from client_lib.durable import write_file
from client_lib.launcher_protocol.directory import Directory
from client_lib.launcher_protocol.plan import TRAINER_STATUS, WorkerPlan
from client_lib.launcher_protocol.rank_processes import Process
from client_lib.launcher_protocol.record import JOB_STREAMS, WRITTEN, metric_lines, numbers
from client_lib.worker.loop import Loop

# for LineMetrics
_BLOCK_S = 0.5  # CPU time for the lines that were read at once, at most 64 KiB
_FIRST_S, _CPU_SHARE = (
    2.0,
    0.25,
)  # CPU time for all lines, and what is added of the time that passes
_LONGEST = 4000  # bytes; longer lines are data, not metrics
_STREAMS = frozenset(stream.encode() for stream in JOB_STREAMS)
STEP = "step"  # the group of this name is the step of the others

# for MetricFiles
_LOOK_S = 0.5
_SHARE = 0.02  # longest share of the time that searches for files take
_BLOCK, _ROWS = 2**20, 2**16  # bytes of an event file and of a table that are read at once
_LAST_LOOKS = 64  # blocks that are read after the end
_DEPTH, _ENTRIES = 3, 5000  # folders below each other, and entries, that one search sees
_CSV_MAX = 2**26
_CSV, _EVENTS = "metrics.csv", ".tfevents."
_WRITES_MAX, _APART_S = (
    64,
    0.1,
)  # most times of writes in one line, and least seconds between two of them
_STEPS = ("step", "epoch")

# for TrainerStatus
_REQUEST_MAX = 2**18  # bytes of one request
_OPEN_MAX, _OPEN_S = 16, 5.0  # connections, and how long each may take
_AGAIN_S = 1.0
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d{1,9})\r\n", re.IGNORECASE)
_NO_METRIC = re.compile(r"total_(?:steps|flos)|(?:current_)?epoch|.*(?:_runtime|_per_second)")
_AUTHORITIES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
)

Values = Tuple[Optional[float], Dict[str, float]]  # a step, and what a file has for it


class LineMetrics:
    """Reads metrics from the lines of the ranks with the regular expression of the job (`metrics`).
    One per worker.

    An expression can take exponential time. `re` handles signals while it searches, so a timer of
    the process's CPU time bounds the search in each block of lines, and the searches in all of them
    to a share of the time that passes. Beyond a bound the expression is not used any more, which a
    message in the log says; lines are logged as before.
    """

    def __init__(
        self, expression: str, sink: Callable[[bytes], None], say: Callable[[str], None]
    ) -> None:
        """`say` gets a message for the log. Raises re.error: this Python does not know
        a part of the expression.
        """
        self._expression: Optional["re.Pattern[str]"] = re.compile(expression)
        self._sink, self._say = sink, say
        self._begun: Dict[bytes, bytes] = {}  # unfinished lines by rank and stream
        self._since, self._spent = time.monotonic(), 0.0

    def add(self, records: bytes) -> None:
        """Read whole records of the log."""
        if self._expression is None:
            return

        def interrupt(*_: Any) -> None:
            raise TimeoutError

        found: List[bytes] = []
        begin = time.process_time()
        left_s = _FIRST_S + _CPU_SHARE * (time.monotonic() - self._since) - self._spent
        before = signal.signal(signal.SIGVTALRM, interrupt)
        try:
            signal.setitimer(signal.ITIMER_VIRTUAL, max(0.001, min(_BLOCK_S, left_s)))
            try:
                for record in records.split(b"\n")[:-1]:
                    self._read(self._expression, record, found)
            finally:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        except TimeoutError:
            self._expression = None
            self._say("the expression of `metrics` takes too long and was switched off")
        finally:
            signal.signal(signal.SIGVTALRM, before)
        self._spent += time.process_time() - begin
        if found:
            self._sink(b"".join(found))

    def _read(self, expression: "re.Pattern[str]", record: bytes, found: List[bytes]) -> None:
        _, _, rank, stream, text = record.split(b" ", 4)
        name = stream.rstrip(b"+~")
        if name not in _STREAMS:
            return
        text = self._begun.pop(rank + name, b"") + text
        if stream.endswith(b"+"):
            self._begun[rank + name] = text[
                : _LONGEST + 1
            ]  # enough to know at its end that it is too long
            return
        if len(text) > _LONGEST:
            return
        matches = expression.finditer(text.decode("utf-8", "replace"))
        values = numbers(pair for match in matches for pair in match.groupdict().items())
        step = values.pop(STEP, None)
        if values:
            found += metric_lines(int(rank) if rank.isdigit() else None, step, values)


# --- files


class MetricFiles:
    """Reads event files of TensorBoard, and Lightning's metrics.csv.

    They are searched below the working directory and the directory for checkpoints. The name of an
    event file has the host and the number of the process that writes it. A metrics.csv is read if
    it was written since the start and a search finds no second one, which may belong to another
    job. A file that can't be read is skipped.
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
        self._loop, self._pids, self._sink = loop, pids, sink
        self._folders, self._since = folders, since
        self._checkpoint_dir, self._written_at = checkpoint_dir, since
        self._events: Dict[str, Tuple[Optional[int], _Events]] = {}
        self._csv: Optional[_Csv] = None
        self._host = socket.gethostname()
        self._ranks: Dict[int, int] = {}  # by pid, also those that have ended
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
        found = [self._pass(rank, events) for rank, events in self._events.values()]
        return any(found + ([self._pass(None, self._csv)] if self._csv else []))

    def _pass(self, rank: Optional[int], file: "Union[_Csv, _Events]") -> bool:
        before, lines = file.position, []
        with contextlib.suppress(
            Exception
        ):  # a file may hold other bytes, which any part of the parser refuses
            for step, values in file.read():
                lines += metric_lines(rank, step, values) if values else []
        if lines:
            self._sink(b"".join(lines))
        return file.position != before

    def _search(self) -> None:
        """Find event files that were changed since the start, and the table that was made since."""
        self._send_writes()
        tables = set()
        for entry, folder_at in _entries(self._folders):
            if _EVENTS not in entry.name and (entry.name != _CSV or folder_at < self._since):
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
                if ".%s.%d." % (self._host, pid) in name + "." and path not in self._events:
                    self._events[path] = (
                        rank if rank >= 0 else None,
                        _Events(path, self._run(path, rank)),
                    )
        if self._csv is None and len(tables) == 1:
            self._csv = _Csv(tables.pop())

    def _run(self, path: str, rank: int) -> str:
        """Path of the folder of an event file below that of another file of the rank, and a slash:
        TensorBoard names a run below a run so. "": there is no other."""
        folder = os.path.dirname(path)
        above = (os.path.dirname(known) for known, (of, _) in self._events.items() if of == rank)
        return next(
            (
                os.path.relpath(folder, each) + "/"
                for each in above
                if folder.startswith(each + os.sep)
            ),
            "",
        )

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
                if (
                    status.st_mtime > self._written_at
                    and stat.S_ISREG(status.st_mode)
                    and not is_metric
                ):
                    changes.append(status.st_mtime)
        for at in sorted(changes):
            if not times or at - times[-1] > _APART_S:
                times.append(round(at, 3))
        if times:
            self._written_at = max(self._written_at, times[-1] + _APART_S)
            self._sink(json.dumps([None, WRITTEN, times[-_WRITES_MAX:]]).encode() + b"\n")


def _entries(roots: List[str]) -> "Iterator[Tuple[os.DirEntry[str], float]]":
    """The content of these folders and of those below, the nearest first, and the
    last change of each folder.
    """
    folders, left = [(root, 0) for root in roots], _ENTRIES
    for folder, depth in folders:  # it grows
        with contextlib.suppress(OSError):
            changed_at = os.stat(folder).st_mtime
            with os.scandir(folder) as entries:
                for entry in entries:
                    left -= 1
                    if left < 0:
                        return
                    yield entry, changed_at
                    if (
                        depth < _DEPTH
                        and not entry.name.startswith(".")
                        and entry.is_dir(follow_symlinks=False)
                    ):
                        folders.append((entry.path, depth + 1))


def _opened(path: str, flags: int) -> int:
    """Open a regular file, a table only of bounded size. Raises OSError for others: a pipe
    would block the launcher.
    """
    fd = os.open(path, flags | os.O_NONBLOCK)
    status = os.fstat(fd)
    if stat.S_ISREG(status.st_mode) and (status.st_size <= _CSV_MAX or not path.endswith(_CSV)):
        return fd
    os.close(fd)
    raise OSError("no regular file, or too large")


class _Csv:
    """A table with a heading. It may be written again as a whole, when a column is added."""

    def __init__(self, path: str) -> None:
        self._path, self.position = path, 0
        self._heading = b""
        self._lines = 0  # below the heading, that were read

    def read(self) -> Iterator[Values]:
        with open(self._path, "rb", opener=_opened) as file:
            heading = file.readline()
            if heading != self._heading or os.fstat(file.fileno()).st_size < self.position:
                known = [file.readline() for _ in range(self._lines)]
                if not all(line.endswith(b"\n") for line in [heading, *known]):
                    return  # it is being written
                self._heading, self.position = heading, file.tell()
            file.seek(self.position)
            lines = [line for line in file.readlines(_ROWS) if line.endswith(b"\n")]
        self.position += sum(map(len, lines))
        self._lines += len(lines)
        import csv  # here: few jobs have a table

        for row in csv.DictReader(line.decode("utf-8", "replace") for line in [heading, *lines]):
            values = numbers((name, value) for name, value in row.items() if name)
            steps = [values.pop(name) for name in _STEPS if name in values]
            yield (steps[0] if steps else None), values


class _Events:
    """An event file: TFRecords, each an Event of tensorflow/core/util/event.proto. `run`
    begins the names of values.
    """

    def __init__(self, path: str, run: str) -> None:
        self.position, self._path, self._run = 0, path, run

    def read(self) -> Iterator[Values]:
        with open(self._path, "rb", opener=_opened) as file:
            file.seek(self.position)
            data = file.read(_BLOCK)
        at = 0
        while at + 12 <= len(data):
            (size,) = struct.unpack_from("<Q", data, at)
            end = at + 12 + size + 4  # length and its checksum, the event and its checksum
            if size > _BLOCK - 16:  # an image or a graph that a block does not hold
                self.position += 16 + size
                return
            if end > len(data):
                break
            step, values = _event(data[at + 12 : end - 4])
            yield step, {self._run + tag: value for tag, value in values.items()}
            at = end
            self.position += 16 + size


def _event(data: bytes) -> Values:
    """The step of an Event, and the scalars of its Summary: `simple_value`, or a
    tensor with one `float_val`.
    """
    step, values = 0, {}
    for number, summary in _fields(data):
        if number == 2:
            step = summary
        for field, value in _fields(summary) if number == 5 else ():
            parts = dict(_fields(value)) if field == 1 else {}
            scalar = dict(_fields(parts[8])).get(5) if 8 in parts else parts.get(2)
            if isinstance(scalar, bytes) and len(scalar) == 4:
                values[parts[1].decode("utf-8", "replace")] = struct.unpack("<f", scalar)[0]
    return step, values


def _fields(data: bytes) -> Iterator[Tuple[int, Any]]:
    """Number and value of the fields of a protobuf message: integers, and all others as bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        number, at = _varint(data, at) if kind in (0, 2) else ({1: 8, 5: 4}[kind], at)
        if kind == 0:
            yield key >> 3, number
        else:  # the size of what follows
            yield key >> 3, data[at : at + number]
            at += number


def _varint(data: bytes, at: int) -> Tuple[int, int]:
    """The number that begins there, and the place after it. Raises ValueError: it does not end."""
    value = 0
    for place, byte in enumerate(data[at : at + 10]):
        value |= (byte & 127) << 7 * place
        if byte < 128:
            return value, at + place + 1
    raise ValueError("no number has more than 10 bytes")


# --- posts


def offer_status(
    plan: WorkerPlan,
    ranks: List[Process],
    loop: Loop,
    directory: Directory,
    sink: Callable[[bytes], None],
) -> None:
    """Give the ranks an address for their status, unless they have one or would post
    to a proxy. Raises OSError.
    """
    if not {*TRAINER_STATUS, "http_proxy", "HTTP_PROXY"}.isdisjoint(ranks[0].environment):
        return
    status = TrainerStatus(
        loop, directory.status_token, plan.worker * plan.processes_per_worker, sink
    )
    for process in ranks:
        process.environment.update(
            {name: value for name, value in status.variables.items() if value}
        )


class TrainerStatus:
    """Takes progress and metrics that libraries post by Kubeflow Trainer's status protocol
    (KEP-2779). One per worker.

    Trainer of Hugging Face (5.23 or newer) and `update_trainjob_status` of kubeflow's SDK find the
    address in variables and post at most every 5 s. The launcher listens on loopback, without a
    thread or a process.
    """

    def __init__(
        self, loop: Loop, token_file: str, rank: int, sink: Callable[[bytes], None]
    ) -> None:
        """`rank`: the first of this worker, to which all values belong. Raises OSError."""
        self._loop, self._rank, self._sink = loop, rank, sink
        self._token = os.urandom(16).hex()
        write_file(token_file, self._token.encode())
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self._socket.listen(_OPEN_MAX)
        self._socket.setblocking(False)
        self._open: Dict[socket.socket, bytes] = {}  # bytes received so far
        authorities = next(
            filter(os.path.exists, _AUTHORITIES), ""
        )  # for clients that read it also for http
        url = "http://127.0.0.1:%d/" % self._socket.getsockname()[1]
        self.variables = dict(zip(TRAINER_STATUS, (url, token_file, authorities)))  # noqa: B905  # Python 3.8
        self._listen()

    def _listen(self) -> None:
        self._loop.watch(self._socket.fileno(), self._accept)

    def _accept(self) -> None:
        try:
            peer, _ = self._socket.accept()
        except (
            OSError
        ):  # no descriptor is free: the socket stays readable, and would keep the loop busy
            self._loop.forget(self._socket.fileno())
            self._loop.call_later(_AGAIN_S, self._listen)
            return
        if len(self._open) >= _OPEN_MAX:
            peer.close()
            return
        peer.setblocking(False)
        self._open[peer] = b""
        self._loop.watch(peer.fileno(), lambda: self._read(peer))
        self._loop.call_later(_OPEN_S, lambda: self._close(peer))

    def _read(self, peer: socket.socket) -> None:
        block = b""
        with contextlib.suppress(OSError):
            block = peer.recv(65536)
        data = self._open[peer] = self._open[peer] + block
        head, end, body = data.partition(b"\r\n\r\n")
        length = _LENGTH.search(head + b"\r\n")
        if end and length and len(body) >= int(length[1]):
            status = self._take(head, body)
            with contextlib.suppress(OSError):
                peer.send(b"HTTP/1.1 %s\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" % status)
        elif block and len(data) <= _REQUEST_MAX and (length or not end):
            return
        self._close(peer)

    def _close(self, peer: socket.socket) -> None:
        if self._open.pop(peer, None) is not None:
            self._loop.forget(peer.fileno())
            peer.close()

    def _take(self, head: bytes, body: bytes) -> bytes:
        """Pass a request on; the status of its answer."""
        if b"bearer %s\r\n" % self._token.encode() not in head.lower() + b"\r\n":
            return b"401 Unauthorized"
        try:
            status = json.loads(body)["trainerStatus"]
            values = numbers(
                (str(metric["name"]), metric["value"]) for metric in status.get("metrics") or []
            )
            step = values.pop("current_step", None)
            values = {
                name: value for name, value in values.items() if not _NO_METRIC.fullmatch(name)
            }
            posted = [status.get("progressPercentage"), status.get("estimatedRemainingSeconds")]
            lines = metric_lines(
                self._rank, step, values, 0, [None if n is None else float(n) for n in posted]
            )
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            return b"422 Unprocessable Entity"
        self._sink(b"".join(lines))
        return b"200 OK"
