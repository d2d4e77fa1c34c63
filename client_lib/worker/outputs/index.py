"""The list of one worker's kept files: appended lines of JSON, of which the last one of each path counts.

    {"path": "model.pt", "size": 12, "sha256": "...", "mtime": 1700000000.5, "executable": false}
    {"path": "tmp.pt", "gone": true}                      the script has removed it
    {"path": "huge.bin", "size": 99, "left_out": "..."}   the reason why it is not kept

There is one writer and any number of readers; a last line without its end was cut off by a crash and is ignored.
"""

import json
import os
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from client_lib.worker.directory import Opener, write_all, write_file

NAME = "index.jsonl"
_SLACK_LINES = 1000  # superseded lines that do not justify rewriting the list


class Kept(NamedTuple):
    """One kept file, in the version that was kept."""

    path: str
    size: int
    sha256: str
    mtime: float
    executable: bool


class LeftOut(NamedTuple):
    """One file whose newest version is not kept."""

    path: str
    size: int
    why: str


class Index(NamedTuple):
    kept: Dict[str, Kept]
    left_out: Dict[str, LeftOut]


def read(folder: str, opener: Optional[Opener] = None) -> Index:
    """The list in this folder; empty if there is none."""
    return _parsed(_whole_lines(os.path.join(folder, NAME), opener))


def _whole_lines(path: str, opener: Optional[Opener] = None) -> List[bytes]:
    try:
        with open(path, "rb", opener=opener) as file:
            data = file.read()
    except FileNotFoundError:
        return []
    return data[: data.rfind(b"\n") + 1].splitlines()


def _parsed(lines: List[bytes]) -> Index:
    index = Index({}, {})
    for line in lines:
        entry = json.loads(line)
        path = entry["path"]
        index.left_out.pop(path, None)
        if entry.get("gone"):
            index.kept.pop(path, None)
        elif "left_out" in entry:
            index.left_out[path] = LeftOut(path, entry["size"], entry["left_out"])
        else:
            index.kept[path] = Kept(path, entry["size"], entry["sha256"], entry["mtime"], entry["executable"])
    return index


class IndexWriter:
    """The only writer of a list. `index` is its content."""

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, NAME)
        lines = _whole_lines(self._path)
        self.index = _parsed(lines)
        size = sum(len(line) + 1 for line in lines)
        if len(lines) > 2 * (len(self.index.kept) + len(self.index.left_out)) + _SLACK_LINES:
            size = self._rewrite()
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600)
        self._size = size
        self._cut()

    def keep(self, kept: Kept) -> None:
        self.index.kept[kept.path] = kept
        self.index.left_out.pop(kept.path, None)
        self._append(dict(kept._asdict()))

    def leave_out(self, left: LeftOut) -> None:
        """Note the reason; a kept older version stays."""
        if self.index.left_out.get(left.path) != left:
            self.index.left_out[left.path] = left
            self._append({"path": left.path, "size": left.size, "left_out": left.why})

    def forget(self, path: str) -> None:
        before: Tuple[object, object] = (self.index.kept.pop(path, None), self.index.left_out.pop(path, None))
        if any(before):
            self._append({"path": path, "gone": True})

    def sync(self) -> None:
        """Return when the list is on the disk."""
        os.fsync(self._fd)

    def close(self) -> None:
        os.close(self._fd)

    def _append(self, entry: Dict[str, Any]) -> None:
        line = _line(entry)
        try:
            write_all(self._fd, line)
        except OSError:
            self._cut()
            raise
        self._size += len(line)

    def _cut(self) -> None:
        """Cut the file after the last whole line: a crash or a full disk may leave a part of the next."""
        os.ftruncate(self._fd, self._size)
        os.lseek(self._fd, self._size, os.SEEK_SET)

    def _rewrite(self) -> int:
        entries = [dict(kept._asdict()) for kept in self.index.kept.values()]
        entries += [
            {"path": left.path, "size": left.size, "left_out": left.why} for left in self.index.left_out.values()
        ]
        data = b"".join(map(_line, entries))
        write_file(self._path, data, durable=True)
        return len(data)


def _line(entry: Dict[str, Any]) -> bytes:
    return json.dumps(entry, ensure_ascii=True).encode() + b"\n"
