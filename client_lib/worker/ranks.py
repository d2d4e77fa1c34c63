"""The processes of one worker: started together, reaped, and stopped with all of their descendants.

Processes are started with fork and exec instead of subprocess: in between, the child must ask the
kernel for its own death at the launcher's end (system.py), and forking the small, single-threaded
launcher is cheap. A failure before exec is reported through a pipe, so that a start is known to
have worked when `start` returns.
"""

import os
import signal
import time
from typing import Callable, Dict, List, NamedTuple, NoReturn, Optional, Sequence, Set

from client_lib.launcher_protocol.directory import MARKER
from client_lib.launcher_protocol.processes import catches, group_members, ignores, start_time
from client_lib.launcher_protocol.rank_processes import Process
from client_lib.launcher_protocol.record import NO_RANK
from client_lib.worker.loop import reset_signals
from client_lib.worker.receivers import receivers
from client_lib.worker.system import Linux, System, ended_children

_UNWINDING_SIGNAL = 51  # a real-time signal; rank_runner/answers.py uses the same number
Run = Callable[[List[str], Dict[str, str]], NoReturn]
"""Function that a new process runs, with argv and environment: `execute`, or the
warm pool's (warm/rank.py).
"""
AddPipe = Callable[[int, str, int, str], None]
"""Function that gets rank, stream and descriptor of a pipe, and the rank to
show: `WorkerLog.add_pipe`.
"""
Send = Callable[[int, int], None]
"""os.kill, or os.killpg for a group."""
Pids = Callable[[], Dict[int, int]]
"""Function that returns the running processes and their ranks: `Ranks.pids`."""


class Exit(NamedTuple):
    """End of a rank's process. Times are seconds since 1970."""

    rank: int
    exit_code: Optional[int]
    signal: Optional[int]
    started_at: float
    ended_at: float
    stopped_at: Optional[float]
    """Time of our first signal to it; None: it ended before any."""


class Ranks:
    """All ranks of this worker."""

    def __init__(self, system: System, add_pipe: AddPipe) -> None:
        self.exits: List[Exit] = []
        """In the order in which they ended."""
        self.started_at: Optional[float] = None
        """Time at which all had been started, in seconds since 1970; None: they were not."""
        self._system = system
        self._add_pipe = add_pipe
        self._running: Dict[int, Process] = {}  # by pid
        # all started processes by pid, which is also the pid of their group
        self._began_at: Dict[int, float] = {}
        self._stopped_at: Optional[float] = None
        # processes and groups by the signal that they got, once each
        self._asked: Dict[int, Set[int]] = {signal.SIGINT: set(), signal.SIGTERM: set()}
        # left over; at the next look those that still run get SIGTERM: at the end of a Python
        # process or a pipe, its workers or readers end by themselves
        self._to_ask: Set[int] = set()
        self._asked_as_a_whole: Set[int] = set()  # groups whose processes are not known
        self._asked_why: Set[int] = set()  # ranks that were asked whether they unwind

    @property
    def running(self) -> bool:
        return bool(self._running)

    @property
    def failed(self) -> List[Exit]:
        return [exit for exit in self.exits if exit.exit_code != 0]

    def start(self, processes: Sequence[Process], run: Run) -> None:
        """Start all, in the order of their ranks. Raises OSError naming
        what could not be started.
        """
        for process in processes:
            started = start(process, self._system.before_exec, run)
            self._running[started.pid] = process
            self._began_at[started.pid] = time.time()
            shown = NO_RANK if process.is_agent else str(process.rank)
            self._add_pipe(process.rank, "stdout", started.stdout, shown)
            self._add_pipe(process.rank, "stderr", started.stderr, shown)
        self.started_at = time.time()

    def record(self) -> Dict[str, object]:
        """Content of processes.json."""
        return {
            str(process.rank): {"pid": pid, "pgid": pid, "start_time": start_time(pid)}
            for pid, process in self._running.items()
        }

    def pids(self) -> Dict[int, int]:
        """The running processes and their ranks; -1: an agent, whose ranks are its children."""
        return {
            pid: -1 if process.is_agent else process.rank for pid, process in self._running.items()
        }

    def reap(self) -> List[Exit]:
        """Reap every child that has ended, ranks and adopted orphans. Returns the ranks."""
        ended = []
        for pid, status in ended_children():
            process = self._running.pop(pid, None)
            if process:
                self._system.rank_ended(pid)
                by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
                code = None if by is not None else os.WEXITSTATUS(status)
                ended.append(
                    Exit(process.rank, code, by, self._began_at[pid], time.time(), self._stopped_at)
                )
        self.exits += ended
        return ended

    def unwinding_is_known(self) -> bool:
        """Ask the running ranks, at the first call, to write the exception from which they unwind.
        True when all have answered that can. One without a handler would not survive the signal."""
        for pid in self._running.keys() - self._asked_why:
            self._asked_why.add(pid)
            if catches(pid, _UNWINDING_SIGNAL):
                _kill(pid, _UNWINDING_SIGNAL)
        return not any(catches(pid, _UNWINDING_SIGNAL) for pid in self._running)

    def ask_to_end(self, signum: int) -> None:
        """Send SIGTERM or SIGINT, once, to each running rank: to a Python process alone; to a
        command and to what it has started, but not to workers of multiprocessing (receivers.py).
        After a SIGTERM there is no SIGINT. A process that ignores SIGINT gets SIGTERM."""
        self._stopped_at = self._stopped_at or time.time()
        for group, process in self._running.items():
            if group in self._asked[signum] or group in self._asked[signal.SIGTERM]:
                continue
            if process.is_python:
                self._ask(group, signum)
            elif isinstance(self._system, Linux):
                for pid in {group: None, **dict.fromkeys(self._members(group))}:
                    self._ask(pid, signum)
            else:
                self._ask(group, signum, os.killpg)
                self._asked_as_a_whole.add(group)

    def _members(self, group: int) -> List[int]:
        """The processes of the group of a rank that get a signal to end (Linux)."""
        return receivers(Linux.described(group_members(group)))

    def _ask(self, pid: int, signum: int, send: Send = os.kill) -> None:
        is_ignored = signum == signal.SIGINT and ignores(pid, signum)
        sent = signal.SIGTERM if is_ignored else signum
        if pid not in self._asked[sent]:
            self._asked[sent].add(pid)
            _kill(pid, sent, send)

    def kill(self) -> None:
        """End the grace: SIGKILL for the ranks and all processes that were asked to end, and
        SIGTERM for the other processes in the groups of the ranks."""
        self._stopped_at = self._stopped_at or time.time()
        for group in self._running:
            if not isinstance(self._system, Linux):
                _kill(group, signal.SIGKILL, os.killpg)
                continue
            for pid in group_members(group):
                if pid == group or self._was_asked(pid):
                    _kill(pid, signal.SIGKILL)
                else:
                    self._ask(pid, signal.SIGTERM)

    def left_over(self) -> List[int]:
        """Processes of ranks that have all ended; none of another user, as by
        `sudo`: they can't be ended. Groups, where processes are not known.
        """
        found = self._system.descendants(MARKER)
        if found is None:
            return [group for group in self._began_at if _kill(group, 0, os.killpg)]
        return [pid for pid in found if _kill(pid, 0)]

    def end_left_over(self, *, kill: bool) -> None:
        """Send SIGTERM, once, to the processes of ranks that have ended, and SIGKILL if `kill`.
        Workers of multiprocessing get SIGTERM when the Python process above them has ended, readers
        of a pipe when its writers have. To be called again and again."""
        left = self.left_over()
        if not isinstance(self._system, Linux):
            for group in left:
                if kill:
                    _kill(group, signal.SIGKILL, os.killpg)
                elif group not in self._asked_as_a_whole:
                    self._asked_as_a_whole.add(group)
                    _kill(group, signal.SIGTERM, os.killpg)
        elif kill:
            for pid in left:
                _kill(pid, signal.SIGKILL)
        elif not all(map(self._was_asked, left)):
            found = [pid for pid in receivers(Linux.described(left)) if not self._was_asked(pid)]
            for pid in self._to_ask.intersection(found):
                self._ask(pid, signal.SIGTERM)
            self._to_ask = set(found)

    def _was_asked(self, pid: int) -> bool:
        return any(pid in asked for asked in self._asked.values())


def _kill(pid: int, signum: int, send: Send = os.kill) -> bool:
    """False: there is no such process or group, or it is another user's."""
    try:
        send(pid, signum)
    except (ProcessLookupError, PermissionError):
        # the latter is raised by macOS for a group of zombies, too
        return False
    return True


# --- one process


class Started(NamedTuple):
    """A running process, leader of its own session and group, and the
    launcher's ends of its pipes.
    """

    pid: int
    stdout: int
    stderr: int


def execute(argv: List[str], environment: Dict[str, str]) -> NoReturn:
    """Become the program, looked up on PATH."""
    # Python ignores these, and exec would inherit that
    for signum in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(signum, signal.SIG_DFL)
    os.execvpe(argv[0], argv, environment)


def start(process: Process, before_exec: Callable[[], None], run: Run = execute) -> Started:
    """Start the process; its stdin is empty if it cannot be opened (the terminal was closed). `run`
    closes all other descriptors, as exec does. Raises OSError naming the program or the folder."""
    ends: List[int] = []
    try:
        for _ in range(3):
            ends += os.pipe()
        pid = os.fork()
    except OSError as error:  # no descriptor or process is free
        for fd in ends:
            os.close(fd)
        raise OSError(error.errno, error.strerror, process.argv[0]) from error
    failed, report, stdout, child_stdout, stderr, child_stderr = ends
    if pid == 0:
        _become(process, before_exec, run, child_stdout, child_stderr, report)
    for fd in (report, child_stdout, child_stderr):
        os.close(fd)
    with os.fdopen(failed, "rb") as pipe:
        failure = pipe.read()
    if failure:
        os.close(stdout)
        os.close(stderr)
        os.waitpid(pid, 0)
        number, _, name = failure.decode("utf-8", "replace").partition(" ")
        raise OSError(int(number), os.strerror(int(number)), name)
    os.set_blocking(stdout, False)
    os.set_blocking(stderr, False)
    return Started(pid, stdout, stderr)


def _become(
    process: Process,
    before_exec: Callable[[], None],
    run: Run,
    stdout: int,
    stderr: int,
    report: int,
) -> NoReturn:
    """The child's part, up to the program."""
    name = process.argv[0]
    try:
        reset_signals()
        os.setsid()
        before_exec()
        os.dup2(_opened(process.stdin), 0)
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        name = process.working_dir
        os.chdir(process.working_dir)
        name = process.argv[0]
        run(process.argv, process.environment)
    except OSError as error:
        os.write(report, b"%d %b" % (error.errno or 0, os.fsencode(name)))
    finally:
        os._exit(127)


def _opened(stdin: str) -> int:
    try:
        # not blocking: a named pipe may have no writer; no controlling terminal: the submitter
        # keeps it
        fd = os.open(stdin, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return os.open(os.devnull, os.O_RDONLY)
    os.set_blocking(fd, True)
    return fd


def start_apart(
    argv: List[str], environment: Dict[str, str], folder: str, system: System
) -> Started:
    """Start a process that is no part of the worker; its stderr is not read. Raises OSError."""
    started = start(Process(-1, -1, argv, {**environment, MARKER: ""}, folder), system.before_exec)
    os.close(started.stderr)
    return started
