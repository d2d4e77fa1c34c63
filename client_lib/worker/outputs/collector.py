"""Scans the working directory for outputs: every minute while the ranks run, and at their end.

Links are followed only within the directory: a link to a file inside counts as that file, any other
is left out. A change is detected by size, times and inode: the kernel's change time cannot be set
back.

Copying may take long, and the launcher must go on reading pipes and instructions: the scans run in
a thread, which reports its end to the loop through a pipe, and starts after the ranks were forked.
What the launcher forks later must take no lock that the thread may hold: it execs at once, or is a
session, which resolves no names (session.py).
"""

import _thread
import contextlib
import hashlib
import os
import stat
import sys
import time
from typing import (
    TYPE_CHECKING,
    Callable,
    Dict,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Tuple,
    Union,
)

from client_lib.durable import write_file
from client_lib.launcher_protocol.output_globs import ENVIRONMENT_MARKS, Patterns, never
from client_lib.launcher_protocol.output_store import (
    BeingWritten,
    DirectoryStore,
    LeftOut,
    NotKept,
    SourceFile,
)
from client_lib.launcher_protocol.plan import WorkerPlan
from client_lib.launcher_protocol.report import FileLeftOut, OutputsReport
from client_lib.worker.loop import Loop

if TYPE_CHECKING:
    from client_lib.worker.outputs.http_store import HttpStore

# time for the last scan of a stopped worker, even if its ranks have used all of the grace
LEAST_S = 5.0
_DIGEST = 8  # bytes that stand for a file as it was: there may be 200 000
_LEFT_OUT_MAX = 20  # in the report; the others are in the list of outputs
SETTLED_S = 2.0  # a file that was changed more recently is probably still being written
_NO_TIME = "the time to keep it was over (grace_s)"
_VERSION = Tuple[int, int, int]


# --- the files that are new or changed


class Found(NamedTuple):
    """One file. Times are the file system's, in nanoseconds."""

    path: str
    """Relative to the working directory, with slashes."""
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    executable: bool
    why_not: Optional[str] = None
    """The reason why it cannot be kept; None: it can."""

    @property
    def version(self) -> _VERSION:
        return self.size, self.mtime_ns, self.inode


class FileFinder:
    """Scans one working directory. Leaves out files that existed before the worker's first launcher
    ran and did not change since.
    """

    def __init__(self, root: str, globs: List[str], memory: str) -> None:
        """Call before anything runs. `memory`: a file with the first scan, for a launcher
        that replaces a dead one.
        """
        self.root = os.path.realpath(root)
        self._patterns = Patterns(globs)
        self._unread: Dict[str, OSError] = {}  # folders that the last scan could not read
        try:
            with open(memory, "rb") as file:
                data = file.read()
        except FileNotFoundError:
            data = b"".join(_digest(found) for found in self._walk())
            write_file(memory, data)
        self._before = {data[at : at + _DIGEST] for at in range(0, len(data), _DIGEST)}

    def look(self) -> List[Found]:
        """Files that were created or changed since, in the order of their paths. Raises OSError."""
        found = sorted(found for found in self._walk() if _digest(found) not in self._before)
        if "" in self._unread:
            raise self._unread[""]
        return found

    def could_see(self, path: str) -> bool:
        """True if the last scan had found a file of this path. False: its
        folder could not be read.
        """
        return not any(path.startswith(folder + "/") for folder in self._unread)

    def _walk(self) -> Iterator[Found]:
        """Walk with an explicit stack: a script may nest folders deeper than
        Python's recursion limit.
        """
        waiting = [""]
        self._unread = {}
        while waiting:
            below = waiting.pop()
            try:
                with os.scandir(os.path.join(self.root, below)) as scan:
                    entries = [entry for entry in scan if not never(entry.name)]
            except (FileNotFoundError, NotADirectoryError):  # removed meanwhile
                continue
            except OSError as error:  # such as too many open files
                self._unread[below] = error
                continue
            if any(entry.name in ENVIRONMENT_MARKS for entry in entries):
                continue
            for entry in entries:
                path = below + "/" + entry.name if below else entry.name
                if entry.is_dir(follow_symlinks=False):
                    if self._patterns.may_lie_below(path):
                        waiting.append(path)
                elif self._patterns.match(path):
                    found = self._file(entry, path)
                    if found is not None:
                        yield found

    def _file(self, entry: "os.DirEntry[str]", path: str) -> Optional[Found]:
        """None: it is gone, a broken link, or a link to a folder, whose files are
        found by their own paths.
        """
        try:
            is_link = entry.is_symlink()
            if is_link and not entry.is_file():
                return None
            status = entry.stat(follow_symlinks=is_link)
            is_inside = not is_link or os.path.realpath(entry.path).startswith(self.root + os.sep)
        except OSError:
            return None
        why_not = None
        if not is_inside:
            why_not = "it is a link out of the working directory"
        elif not stat.S_ISREG(status.st_mode):
            why_not = "it is no file but a pipe, a socket or a device"
        elif path != _shown(path):
            why_not = "its name is no UTF-8"
        executable = bool(status.st_mode & stat.S_IXUSR)
        return Found(
            path,
            status.st_size,
            status.st_mtime_ns,
            status.st_ctime_ns,
            status.st_ino,
            executable,
            why_not,
        )


def _digest(found: Found) -> bytes:
    return hashlib.blake2b(
        repr(found).encode("utf-8", "surrogateescape"), digest_size=_DIGEST
    ).digest()


# --- one scan


class LookInterrupted(Exception):
    """The scan ends early: the last one follows, or the deadline has passed."""


class Sync:
    """Scans, with the memory of the files kept before. One scan at a time."""

    def __init__(
        self,
        finder: FileFinder,
        store: "Union[DirectoryStore, HttpStore]",
        linkable: bool,
        check_time: Callable[[], None],
    ) -> None:
        """`linkable`: the files never change after the end of the ranks. `check_time` is called
        between steps, and raises LookInterrupted to end the scan; a final scan then leaves the rest
        out."""
        self._finder = finder
        self._store = store
        self._linkable = linkable
        self._check_time = check_time
        self._kept: Dict[str, _VERSION] = {}
        self._left_out: Dict[str, LeftOut] = {}

    def look(self, final: bool) -> None:
        """Bring the store up to date. `final`: the ranks have ended. A file with an
        OSError waits for the next scan.
        """
        found = self._finder.look()
        at = 0
        try:
            removed = {*self._kept, *self._left_out}.difference(one.path for one in found)
            for path in filter(self._finder.could_see, removed):  # by the script
                self._store.forget(_shown(path))
                self._kept.pop(path, None)
                self._left_out.pop(path, None)
            for number, one in enumerate(found):
                at = number
                self._check_time()
                why_not = self._keep(one, final)
                left = LeftOut(_shown(one.path), one.size, why_not) if why_not else None
                if left and self._left_out.get(one.path) != left:
                    self._store.leave_out(*left)
                    self._left_out[one.path] = left
        except LookInterrupted:
            if not final:
                raise
            late = [one for one in found[at:] if not self._is_kept(one)]
            self._left_out.update(
                (one.path, LeftOut(_shown(one.path), one.size, _NO_TIME)) for one in late
            )
            # the report has them even if the store does not answer
            with contextlib.suppress(LookInterrupted):
                for one in late:
                    self._store.leave_out(*self._left_out[one.path])

    def report(self) -> OutputsReport:
        left_out = sorted(self._left_out.values())
        named: List[FileLeftOut] = [
            {"path": left.path, "size": left.size, "why": left.why}
            for left in left_out[:_LEFT_OUT_MAX]
        ]
        return {
            "kept": len(self._kept),
            "bytes": sum(size for size, _, _ in self._kept.values()),
            "left_out": named,
            "left_out_count": len(left_out),
        }

    def _is_kept(self, one: Found) -> bool:
        return self._kept.get(one.path) == one.version and one.path not in self._left_out

    def _keep(self, one: Found, final: bool) -> Optional[str]:
        """Keep the newest version of a file, unless it is kept. Returns
        the reason why it can't be.
        """
        if one.why_not or self._is_kept(one):
            return one.why_not
        # file systems may have another clock
        if not final and abs(time.time() - one.mtime_ns / 1e9) <= SETTLED_S:
            return None
        try:
            path = os.path.realpath(os.path.join(self._finder.root, one.path))
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
            try:
                at_rest = path if final and self._linkable else None
                source = SourceFile(one.path, fd, one.executable, self._check_time, at_rest)
                if not stat.S_ISREG(source.status.st_mode) or not path.startswith(
                    self._finder.root + os.sep
                ):
                    raise BeingWritten(one.path)  # replaced since it was found
                self._store.keep(source)
            finally:
                os.close(fd)
        except BeingWritten:
            return "it is still being written, though every rank has ended" if final else None
        except NotKept as refused:
            return str(refused)
        except OSError as error:
            return error.strerror or str(error)
        self._kept[one.path] = (source.size, source.status.st_mtime_ns, source.status.st_ino)
        self._left_out.pop(one.path, None)
        return None


def _shown(path: str) -> str:
    """The path in UTF-8, which JSON needs."""
    return path.encode("utf-8", "backslashreplace").decode("utf-8")


# --- the scans of a launcher


class Collector:
    """The scans of one worker. Call `start` when the ranks run, `finish` when they have ended."""

    def __init__(self, loop: Loop, plan: WorkerPlan, root: str, memory: str) -> None:
        """Records the files that exist now: they are no outputs."""
        self._loop = loop
        self._plan = plan
        self._finder = FileFinder(root, plan.outputs, memory)
        self._sync: Optional[Sync] = None
        self._problem: Optional[str] = "nothing was looked at"
        self._over, self._tell = os.pipe()
        self._running = _thread.allocate_lock()  # released at the end of the ranks
        self._running.acquire()
        self._is_last = False  # the last scan has begun
        self._deadline = float("inf")

    def start(self) -> None:
        _thread.start_new_thread(self._scan, ())

    def hurry(self, grace_s: float) -> None:
        """Set a deadline for a stopped worker; files that are not kept by then are left out."""
        self._deadline = min(self._deadline, time.monotonic() + grace_s)

    def finish(self, done: Callable[[], None]) -> None:
        """Begin the last scan; `done` is called on the loop when it is over."""

        def over() -> None:
            self._loop.forget(self._over)
            done()

        self._deadline = max(self._deadline, time.monotonic() + LEAST_S)
        self._loop.watch(self._over, over)
        self._running.release()

    def report(self) -> OutputsReport:
        known: OutputsReport = {"kept": 0, "bytes": 0, "left_out": []}
        if self._sync:
            known = self._sync.report()
        if self._problem:
            known["problem"] = self._problem
        return known

    # --- in the thread

    def _scan(self) -> None:
        plan = self._plan
        while not self._is_last:
            self._is_last = self._running.acquire(timeout=plan.outputs_every_s)
            try:
                if self._sync is None:
                    assert plan.outputs_to is not None
                    store: "Union[DirectoryStore, HttpStore]"
                    if os.path.isabs(plan.outputs_to):
                        store = DirectoryStore(
                            plan.outputs_to, plan.outputs_limit_bytes, plan.keep_free_bytes
                        )
                    else:
                        # here: pods alone send to a server
                        from client_lib.worker.outputs.http_store import HttpStore

                        store = HttpStore(
                            plan.outputs_to, plan.outputs_token, plan.outputs_ca, self._check_time
                        )
                    self._sync = Sync(
                        self._finder, store, plan.snapshot is not None, self._check_time
                    )
                self._sync.look(self._is_last)
                self._problem = None
            except LookInterrupted:  # by the end of the ranks: the last scan follows
                self._problem = None
            except OSError as error:
                self._problem = str(error)
            except Exception:  # noqa: BLE001  # a defect of ours: the ranks and their report go on
                self._problem = "it broke off; launcher.out says why"
                sys.excepthook(*sys.exc_info())
        os.write(self._tell, b".")

    def _check_time(self) -> None:
        """Raises LookInterrupted: the ranks have ended since a scan began, or the time
        for the last one is over.
        """
        if time.monotonic() > self._deadline if self._is_last else not self._running.locked():
            raise LookInterrupted
