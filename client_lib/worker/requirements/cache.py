"""Cache of environments with extra packages.

    <folder>/<key>/env/             the virtual environment
    <folder>/<key>/complete.json    {"requirements", "python", "bytes"}; touched at each use
    <folder>/<key>.lock             shared: in use; exclusive: being made or removed

The key is a digest of the interpreter, its installed packages and the requirements: after a change of one of these it
is another environment.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from typing import Any, Dict, Iterator, List, NamedTuple, Optional

from client_lib.worker.directory import read_json, sha256_of, write_json
from client_lib.worker.disk import size_of

_INSTALLED = (".dist-info", ".egg-info", ".egg-link", ".pth")


class Parent(NamedTuple):
    """The interpreter to which packages are added."""

    python: str
    """Absolute."""
    version: str
    paths: List[str]
    """Folders of its packages, in the order of sys.path."""


def key_of(parent: Parent, requirements: List[str]) -> str:
    """Reads the names of the parent's packages, and the content of requirements that are files or folders here."""
    installed = sorted(name for path in parent.paths for name in os.listdir(path) if name.endswith(_INSTALLED))
    text = json.dumps([parent.python, parent.version, parent.paths, installed, sorted(map(_identity, requirements))])
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _identity(line: str) -> str:
    """A package that is a file or a folder is identified by its content, not by its path."""
    if os.path.isabs(line) and os.path.exists(line):
        return "%s %s" % (os.path.basename(line), _content(line))
    return line


def _content(line: str) -> str:
    if os.path.isfile(line):
        return sha256_of(line)
    files = sorted(os.path.join(below, name) for below, _, names in os.walk(line) for name in names)
    listed = [(os.path.relpath(path, line), sha256_of(path)) for path in files if os.path.isfile(path)]
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()


class PackageEnvironment:
    """One environment, which may not exist yet."""

    def __init__(self, folder: str, key: str) -> None:
        self.folder = os.path.join(folder, key)
        self.prefix = os.path.join(self.folder, "env")
        self.python = os.path.join(self.prefix, "bin", "python")
        self._lock = self.folder + ".lock"
        self._complete = os.path.join(self.folder, "complete.json")

    def facts(self) -> Optional[Dict[str, Any]]:
        """Content of complete.json; None: the environment is not complete."""
        return read_json(self._complete)

    def use(self) -> Optional[int]:
        """A descriptor that prevents its removal while it is open; None: the environment is not complete."""
        fd = os.open(self._lock, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(fd, fcntl.LOCK_SH)
        if self.facts() is None:
            os.close(fd)
            return None
        with contextlib.suppress(OSError):  # read-only, or another user's
            os.utime(self._complete)
        return fd

    @contextlib.contextmanager
    def alone(self, wait: bool) -> Iterator[bool]:
        """Hold the exclusive lock inside; yields False if another process holds a lock (only without `wait`)."""
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
        facts = {"python": parent.python, "requirements": requirements, "bytes": size_of(self.folder)}
        write_json(self._complete, facts, durable=True)

    def remove(self) -> None:
        """Remove it; the caller holds the exclusive lock."""
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
    """Remove incomplete environments, then the least recently used ones until the rest fits; none that is in use, and
    not the one at `but`."""
    keys = [entry.name for entry in os.scandir(folder) if entry.is_dir()]
    found = sorted((PackageEnvironment(folder, key) for key in keys), key=lambda one: one.used_at)
    total = sum((one.facts() or {}).get("bytes", 0) for one in found)
    for one in found:
        size = (one.facts() or {}).get("bytes")
        if one.folder != but and (size is None or total > limit_bytes):
            with one.alone(wait=False) as mine:
                if mine:
                    one.remove()
                    total -= size or 0
