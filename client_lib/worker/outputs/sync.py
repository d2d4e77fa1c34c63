"""One look at a working directory: what is new is kept, what was removed is forgotten, what can't be kept is said.

Runs in a thread of the launcher. Standard library only, Python >= 3.8.
"""

import os
import stat
import time
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

from client_lib.worker.outputs.find import Finder, Found
from client_lib.worker.outputs.index import LeftOut
from client_lib.worker.outputs.store import BeingWritten, NotKept, Source, Store

SETTLED_S = 2.0  # a file that was changed less long ago is still being written
_NO_TIME = "the time to keep it was over (grace_s)"
_VERSION = Tuple[int, int, int]


class Interrupted(Exception):
    """The look ends here: another one follows, or there is no time left."""


class Summary(NamedTuple):
    """What is kept now, and what is not."""

    files: int
    size: int
    left_out: List[LeftOut]


class Sync:
    """Knows what it has kept already. One look at a time."""

    def __init__(self, finder: Finder, store: Store, linkable: bool) -> None:
        """`linkable`: nobody changes the files once the ranks have ended."""
        self._finder, self._store, self._linkable = finder, store, linkable
        self._kept: Dict[str, _VERSION] = {}
        self._left_out: Dict[str, LeftOut] = {}

    def look(self, final: bool, patience: Callable[[], None]) -> None:
        """Bring the store up to what lies there. `final`: the ranks have ended. `patience` is asked again and again,
        and raises Interrupted; of a final look the rest is then left out.

        OSError of one file leaves it out until the next look.
        """
        self._store.wait = patience
        found = self._finder.look()
        self._forget_removed(found)
        for number, one in enumerate(found):
            try:
                patience()
                self._look_at(one, final, patience)
            except Interrupted:
                if not final:
                    raise
                self._give_up(found[number:])
                return

    def summary(self) -> Summary:
        return Summary(
            len(self._kept), sum(size for size, _, _ in self._kept.values()), sorted(self._left_out.values())
        )

    def _forget_removed(self, found: List[Found]) -> None:
        there = {one.path for one in found}
        for path in [path for path in {**self._kept, **self._left_out} if path not in there]:
            self._store.forget(_shown(path))
            self._kept.pop(path, None)
            self._left_out.pop(path, None)

    def _look_at(self, one: Found, final: bool, patience: Callable[[], None]) -> None:
        version = (one.size, one.mtime_ns, one.inode)
        if self._kept.get(one.path) == version and one.path not in self._left_out:
            return
        if one.why_not:
            self._leave_out(one, one.why_not)
        elif final or _settled(one):
            try:
                self._keep(one, final, patience)
            except BeingWritten:
                if final:
                    self._leave_out(one, "it is still being written, though every rank has ended")
            except NotKept as refused:
                self._leave_out(one, str(refused))
            except OSError as error:
                self._leave_out(one, error.strerror or str(error))

    def _keep(self, one: Found, final: bool, patience: Callable[[], None]) -> None:
        path = os.path.realpath(os.path.join(self._finder.root, one.path))
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            source = Source(one.path, fd, one.executable, patience)
            if not stat.S_ISREG(source.status.st_mode) or not path.startswith(self._finder.root + os.sep):
                raise BeingWritten(one.path)  # it was replaced since it was found
            self._store.keep(source, path if final and self._linkable else None)
            self._kept[one.path] = (source.size, source.status.st_mtime_ns, source.status.st_ino)
            self._left_out.pop(one.path, None)
        finally:
            os.close(fd)

    def _give_up(self, late: List[Found]) -> None:
        """There is no time left: the report says so, and the store if it still listens."""
        self._left_out.update((one.path, LeftOut(_shown(one.path), one.size, _NO_TIME)) for one in late)
        try:
            for one in late:
                self._store.leave_out(*self._left_out[one.path])
        except Interrupted:
            pass

    def _leave_out(self, one: Found, why: str) -> None:
        left = LeftOut(_shown(one.path), one.size, why)
        if self._left_out.get(one.path) != left:
            self._store.leave_out(*left)
            self._left_out[one.path] = left


def _shown(path: str) -> str:
    """Names that are no UTF-8 can't travel as they are."""
    return path.encode("utf-8", "backslashreplace").decode("utf-8")


def _settled(one: Found) -> bool:
    """Also where the clock of the file system is another one than ours: then by the next look."""
    age = time.time() - one.mtime_ns / 1e9
    return age > SETTLED_S or age < -SETTLED_S


def open_store(to: str, limit_bytes: int, token: Optional[str], ca: Optional[str]) -> Store:
    """`to`: an absolute directory, or a URL; `token` and `ca` are files, for a URL."""
    if os.path.isabs(to):
        from client_lib.worker.outputs.store import DirectoryStore

        return DirectoryStore(to, limit_bytes)
    from client_lib.worker.outputs.http_store import HttpStore

    return HttpStore(to, token, ca)
