"""Where environments lie, which one a job has, who uses it, and which go. Standard library only, Python >= 3.8.

    <folder>/<key>/env/             the virtual environment
    <folder>/<key>/complete.json    {"requirements", "python", "bytes"}; touched when it is used
    <folder>/<key>.lock             shared: it is used; exclusive: it is made, or removed

The key stands for the interpreter, what is installed for it, and the requirements: where one of these changes, it is
another environment.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from typing import Any, Dict, Iterator, List, NamedTuple, Optional

from client_lib.worker.directory import read_json, write_json

_INSTALLED = (".dist-info", ".egg-info", ".egg-link", ".pth")


class Parent(NamedTuple):
    """The interpreter that packages are added to."""

    python: str
    """Absolute."""
    version: str
    paths: List[str]
    """Where its packages lie, those that are found first in front."""


def key_of(parent: Parent, requirements: List[str]) -> str:
    """Reads which packages the parent has, and the packages that are files or folders here."""
    installed = sorted(name for path in parent.paths for name in os.listdir(path) if name.endswith(_INSTALLED))
    text = json.dumps([parent.python, parent.version, parent.paths, installed, sorted(map(_identity, requirements))])
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _identity(line: str) -> str:
    """A package that is a file or a folder is what is in it, wherever it lies."""
    if os.path.isabs(line) and os.path.exists(line):
        return "%s %s" % (os.path.basename(line), _content(line))
    return line


def _content(line: str) -> str:
    if os.path.isfile(line):
        return _digest_of(line)
    files = sorted(os.path.join(below, name) for below, _, names in os.walk(line) for name in names)
    listed = [(os.path.relpath(path, line), _digest_of(path)) for path in files if os.path.isfile(path)]
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()


def _digest_of(path: str) -> str:
    found = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            found.update(block)
    return found.hexdigest()


class Environment:
    """One environment, there or not."""

    def __init__(self, folder: str, key: str) -> None:
        self.folder = os.path.join(folder, key)
        self.prefix = os.path.join(self.folder, "env")
        self.python = os.path.join(self.prefix, "bin", "python")
        self._lock = self.folder + ".lock"
        self._complete = os.path.join(self.folder, "complete.json")

    def facts(self) -> Optional[Dict[str, Any]]:
        """Of one that is complete."""
        return read_json(self._complete)

    def use(self) -> Optional[int]:
        """A descriptor that keeps it from being removed for as long as it is open; None: it is not there."""
        fd = os.open(self._lock, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(fd, fcntl.LOCK_SH)
        if self.facts() is None:
            os.close(fd)
            return None
        with contextlib.suppress(OSError):  # read-only, or somebody else's
            os.utime(self._complete)
        return fd

    @contextlib.contextmanager
    def alone(self, wait: bool) -> Iterator[bool]:
        """Nobody else makes, uses or removes it inside; False: somebody does (only without `wait`)."""
        fd = os.open(self._lock, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
                mine = True
            except BlockingIOError:
                mine = False
            yield mine
        finally:
            os.close(fd)

    def declare_complete(self, parent: Parent, requirements: List[str]) -> None:
        facts = {"python": parent.python, "requirements": requirements, "bytes": _size_of(self.folder)}
        write_json(self._complete, facts, durable=True)

    def remove(self) -> None:
        """Only alone."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._complete)
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def used_at(self) -> float:
        try:
            return os.stat(self._complete).st_mtime
        except FileNotFoundError:
            return 0.0


def make_room(folder: str, limit_bytes: int, but: str) -> None:
    """Remove what a crash has left half, then those that were not used for longest, until they fit; none that is used
    now, and not the one at `but`."""
    keys = [entry.name for entry in os.scandir(folder) if entry.is_dir()]
    found = sorted((Environment(folder, key) for key in keys), key=lambda one: one.used_at)
    total = sum((one.facts() or {}).get("bytes", 0) for one in found)
    for one in found:
        size = (one.facts() or {}).get("bytes")
        if one.folder != but and (size is None or total > limit_bytes):
            with one.alone(wait=False) as mine:
                if mine:
                    one.remove()
                    total -= size or 0


def _size_of(folder: str) -> int:
    return sum(
        os.lstat(os.path.join(below, name)).st_blocks * 512 for below, _, names in os.walk(folder) for name in names
    )
