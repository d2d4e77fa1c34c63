"""Lets ranks die with their launcher, and finds processes that they left over.

`choose` returns the implementation for Linux, or for other Unix systems. `Linux` uses the kernel
(parent-death signal, child subreaper, /proc); `Portable` uses a watcher process on a liveness pipe,
and process groups. CLIENT_LIB_PORTABLE=1 chooses `Portable` on Linux too: the tests run both.
"""

import contextlib
import os
import signal
import sys
from typing import Any, Dict, FrozenSet, Iterable, Iterator, List, Set, Tuple, Union

if sys.platform != "win32":  # where no launcher runs
    import resource
from client_lib.launcher_protocol.plan import OPEN_FILES
from client_lib.launcher_protocol.processes import content, environment_of, pids, program, stat
from client_lib.worker.receivers import Member

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38


def restore_open_files() -> None:
    """Set the soft limit of open files to the value of the variable, and remove the variable."""
    soft = os.environ.pop(OPEN_FILES, "")
    if soft:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (int(soft), resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        )


def forbid_new_privileges() -> None:
    """Keep this process and its descendants from getting rights that it lacks, as by
    sudo (Linux). Raises OSError.
    """
    import ctypes  # here: few launchers need it

    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "new privileges can't be forbidden")


class Linux:
    """Parent-death signal and child subreaper: no descendant can outlive the launcher unseen."""

    def __init__(self) -> None:
        import ctypes  # here: takes 4 ms, and other systems do not need it

        # PyDLL does not release the interpreter's lock around the call, which is made between fork
        # and exec
        self._prctl: Any = ctypes.PyDLL(None).prctl
        self._launcher = os.getpid()
        self._prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def before_exec(self) -> None:
        """In the child, between fork and exec: it dies when the launcher dies."""
        self._prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != self._launcher:  # the launcher died before the call above could see it
            os._exit(1)

    def rank_ended(self, pid: int) -> None:
        """The rank was reaped: its pid may belong to another process from now on."""

    def descendants(self, marker: str) -> List[int]:
        """Living descendants of this process, including those in sessions of their own whose
        parents are gone. A process with an empty variable `marker` belongs to no worker: it and its
        descendants are left out."""
        # the subreaper adopts orphans: there is no descendant, and no need to search /proc
        if not has_children():
            return []
        children: Dict[int, List[int]] = {}
        for pid in pids():
            fields = stat("/proc/%d" % pid)
            if fields and fields[0] not in "ZX":
                children.setdefault(int(fields[1]), []).append(pid)
        apart = os.fsencode(marker + "=")
        waiting = [self._launcher]
        found: Set[int] = set()
        while waiting:
            for pid in children.get(waiting.pop(), []):
                if pid not in found and apart not in environment_of(pid):
                    found.add(pid)
                    waiting.append(pid)
        return sorted(found)

    @staticmethod
    def described(chosen: Iterable[int]) -> List[Member]:
        """Those of these processes that live."""
        by_pid = {pid: stat("/proc/%d" % pid) for pid in chosen}
        return [
            _member(pid, fields)
            for pid, fields in by_pid.items()
            if fields and fields[0] not in "ZX"
        ]

    def close(self) -> None:
        """Called when no process of the ranks is alive."""


def _member(pid: int, fields: List[str]) -> Member:
    """`fields`: of its stat file, from the third one on."""
    argv = content("/proc/%d/cmdline" % pid).split(b"\0")
    layout = [*fields[23:26], *fields[45:49]]  # of code, stack, argv and environment; see proc(5)
    is_hidden = set(layout) <= {"0", "1"}
    return Member(
        pid,
        int(fields[1]),
        os.fsencode(program(pid)) or argv[0],
        argv,
        () if is_hidden else tuple(layout),
        _pipes(pid, (0,)),
        _pipes(pid, (1, 2)),
    )


def _pipes(pid: int, descriptors: Tuple[int, ...]) -> FrozenSet[str]:
    found = set()
    for descriptor in descriptors:
        with contextlib.suppress(OSError):  # it is closed, or the process has ended
            found.add(os.readlink("/proc/%d/fd/%d" % (pid, descriptor)))
    return frozenset(target for target in found if target.startswith("pipe:"))


class Portable:
    """The methods of `Linux`, elsewhere. A watcher behind a pipe kills the ranks' groups
    when the launcher is gone.
    """

    def __init__(self) -> None:
        reader, self._pipe = os.pipe()
        if os.fork() == 0:
            os.close(self._pipe)
            _watch(reader)  # never returns
        os.close(reader)

    def before_exec(self) -> None:
        os.write(self._pipe, b"+%d\n" % os.getpid())

    def rank_ended(self, pid: int) -> None:
        os.write(self._pipe, b"-%d\n" % pid)

    def descendants(self, marker: str) -> None:  # noqa: ARG002  # as on Linux
        """None: processes that left the group of their rank cannot be found."""

    def close(self) -> None:
        os.write(self._pipe, b"end\n")


System = Union[Linux, Portable]


def choose() -> System:
    """The system of this machine. Called once, while the launcher has no other
    descriptors and no threads.
    """
    portable = not sys.platform.startswith("linux") or os.environ.get("CLIENT_LIB_PORTABLE") == "1"
    return Portable() if portable else Linux()


def _watch(pipe: int) -> None:
    """The watcher: record the living groups; kill them at an end of file without "end"."""
    os.setsid()
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    quiet = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):  # a reader of the launcher's output must not wait for this process
        os.dup2(quiet, fd)
    groups: Set[int] = set()
    with os.fdopen(pipe, "rb") as lines:
        for line in lines:
            if line.startswith(b"+"):
                groups.add(int(line[1:]))
            elif line.startswith(b"-"):
                groups.discard(int(line[1:]))
            else:
                os._exit(0)
    for group in groups:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)
    os._exit(0)


def ended_children() -> Iterator[Tuple[int, int]]:
    """Reap every child that has ended; yields its pid and its status, as os.waitpid does."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            yield pid, status


def has_children() -> bool:
    """True if this process has a child, which may have ended (Linux)."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
