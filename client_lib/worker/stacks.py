"""Takes the stacks of this worker's processes: the function and line in which each of their threads
is.

A rank registers a handler written in C before its script runs (rank_runner/answers.py): at SIGNAL,
faulthandler writes the stacks of all threads to a file of that rank, also while a thread holds the
interpreter's lock in C. It needs no right to trace processes. Forked children inherit the handler
and the open file, so one process per file is asked at a time.

The signal would kill a process without a handler. It is sent only to a process that catches it
(SigCgt in /proc) and has the file open: after an exec, and after a script has closed all
descriptors, nothing is sent. For such a process, and for one that does not answer, only the state
in /proc is read.
"""

import os
import threading
import time
from contextlib import suppress
from typing import Callable, Dict, List, NamedTuple, NoReturn, Optional, Set

from client_lib.durable import remove, write_json
from client_lib.launcher_protocol.directory import MARKER, Directory
from client_lib.launcher_protocol.processes import catches, content, number, open_files, stat
from client_lib.launcher_protocol.rank_processes import Process
from client_lib.launcher_protocol.report import ProcessReport
from client_lib.worker.loop import Loop
from client_lib.worker.ranks import Started, start
from client_lib.worker.system import System

# a real-time signal: libraries use SIGUSR1 and SIGUSR2; rank_runner/answers.py uses it, too
SIGNAL = 50
LIMIT_S = 1.8
"""Time for all processes together."""
_PROCESS_S = 1.0
"""Time for one process, if others of its rank wait."""
_POLL_S = 0.001
_DUMP_MAX = 512 * 1024
"""Most bytes of one process."""
ALL_MAX = 4 * 1024 * 1024
"""Most characters of all processes. A frame has a comma and at least 24 characters, and the server
takes 200 000 commas in one request."""
_PROCESSES_MAX = 1000
_STOPPED = "T"
"""State of a process that answers only when it is continued."""


class _Seen(NamedTuple):
    """A process, as /proc shows it."""

    pid: int
    parent: int
    session: int
    started: int
    """Clock ticks since the boot: a process has started before its children."""
    file: Optional[str]
    """The file for stacks that it has open."""
    name: str
    state: str
    wchan: Optional[str]
    cpu_s: float


class StackTaker:
    """Takes the stacks in a forked process: a rank that does not answer
    must not delay the launcher.
    """

    def __init__(self, loop: Loop, system: System, directory: Directory) -> None:
        self._loop = loop
        self._system = system
        self._directory = directory
        self._waiting: List[Callable[[], None]] = []

    def take(self, ranks: Dict[int, int], on_taken: Callable[[], None]) -> None:
        """Begin; a call that comes before an earlier call is answered gets the earlier call's
        answer. `ranks`: the pids of the ranks and their numbers; -1 for an agent of torchrun.
        `on_taken` is called when the file `stacks.json` is there, or could not be written. Raises
        OSError: no descriptor or process is free."""
        if self._waiting:
            self._waiting.append(on_taken)
            return
        remove(self._directory.stacks_taken)
        pids = sorted({*ranks, *(self._system.descendants(MARKER) or ())})

        def run(_argv: List[str], _environment: Dict[str, str]) -> NoReturn:
            os.closerange(3, 65536)
            taken = take(self._directory.stacks, ranks, pids, time.monotonic() + LIMIT_S)
            write_json(self._directory.stacks_taken, {"processes": taken})
            os._exit(0)

        child = start(
            Process(-1, -1, ["stacks"], {}, self._directory.path), self._system.before_exec, run
        )
        os.close(child.stderr)
        self._waiting.append(on_taken)
        self._loop.watch(child.stdout, lambda: self._ended(child))

    def _ended(self, child: Started) -> None:
        self._loop.forget(child.stdout)
        os.close(child.stdout)
        self._system.rank_ended(child.pid)
        waiting = self._waiting
        self._waiting = []
        for on_taken in waiting:
            on_taken()


def take(folder: str, ranks: Dict[int, int], pids: List[int], until: float) -> List[ProcessReport]:
    """The stacks of the processes that belong to a rank, the rank's own process before its
    children. `folder` has the files of the ranks; `until`: monotonic time."""
    processes: Dict[int, _Seen] = {}
    for pid in pids[:_PROCESSES_MAX]:
        seen = _look(pid, folder)
        if seen is not None:
            processes[pid] = seen

    taken: List[ProcessReport] = []
    queues: Dict[str, List[ProcessReport]] = {}
    for process in sorted(processes.values(), key=lambda each: (each.started, each.pid)):
        rank = _rank_of(process, processes, ranks)
        if rank < 0:
            continue
        report = _report(process, rank)
        taken.append(report)
        if process.state == _STOPPED:
            report["why"] = "it is stopped by a signal"
        elif not process.file:
            report["why"] = (
                "it has no handler for stacks: it is no Python process of the rank runner"
            )
        else:
            queues.setdefault(process.file, []).append(report)

    threads = [
        threading.Thread(target=_ask_all, args=(path, queue, until))
        for path, queue in queues.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    taken.sort(key=lambda each: each["rank"])
    return within_bounds(taken, ALL_MAX)


def _look(pid: int, folder: str) -> Optional[_Seen]:
    """Read a process from /proc; None: there is no such process."""
    fields = stat("/proc/%d" % pid)
    if not fields or fields[0] in "ZX":
        return None
    beginning = os.path.realpath(folder) + os.sep
    for_stacks = (path for path in open_files(pid) if path.startswith(beginning))
    cpu_ticks = int(fields[11]) + int(fields[12])
    return _Seen(
        pid=pid,
        parent=int(fields[1]),
        session=int(fields[3]),
        started=int(fields[19]),
        file=next(for_stacks, None),
        name=_read("/proc/%d/comm" % pid).rstrip("\n"),
        state=fields[0],
        wchan=_read("/proc/%d/wchan" % pid).strip("0\n") or None,
        cpu_s=cpu_ticks / os.sysconf("SC_CLK_TCK"),
    )


def _report(process: _Seen, rank: int) -> ProcessReport:
    """Describe a process that is not asked yet."""
    return {
        "rank": rank,
        "pid": process.pid,
        "parent": process.parent,
        "name": process.name,
        "state": process.state,
        "wchan": process.wchan,
        "cpu_s": process.cpu_s,
        "dump": None,
        "why": None,
    }


def _rank_of(process: _Seen, processes: Dict[int, _Seen], ranks: Dict[int, int]) -> int:
    """The rank to which a process belongs: by its file, by its nearest ancestor, or, if that is
    gone, by its session; negative: none, as for torchrun's own agent."""
    at = process
    while True:
        name = os.path.basename(at.file or "")
        if name.isdigit():
            return int(name)
        if at.pid in ranks:
            return ranks[at.pid]
        above = processes.get(at.parent)
        # a younger process has only taken over the pid of the parent
        if above is None or above.started > at.started:
            return ranks.get(process.session, -1)
        at = above


def _ask_all(path: str, queue: List[ProcessReport], until: float) -> None:
    """Ask the processes that share the file at `path`, one after the other."""
    for process in queue:
        now = time.monotonic()
        if not catches(process["pid"], SIGNAL):
            process["why"] = "it has no handler for stacks any more"
            continue
        last = process is queue[-1]
        limit = until if last else min(until, now + _PROCESS_S)
        process["dump"] = _ask(process["pid"], path, limit)
        if process["dump"] is None:
            process["why"] = "it did not answer within %.1f s" % (time.monotonic() - now)


def _ask(pid: int, path: str, until: float) -> Optional[str]:
    """The stacks that a process writes to its file; None: it does not answer."""
    blocked_before = _blocked_in(pid)
    with suppress(OSError):  # it has ended
        os.truncate(path, 0)  # it appends
        os.kill(pid, SIGNAL)
        while time.monotonic() < until:
            # the kernel blocks the signal in the thread that handles it, and unblocks it after the
            # text is written
            if os.path.getsize(path) and not _blocked_in(pid) - blocked_before:
                with open(path, "rb") as file:
                    return file.read(_DUMP_MAX).decode("utf-8", "replace")
            time.sleep(_POLL_S)
    return None


def _blocked_in(pid: int) -> Set[str]:
    """The threads of a process that block SIGNAL."""
    try:
        threads = os.listdir("/proc/%d/task" % pid)
    except OSError:
        return set()
    bit = 1 << (SIGNAL - 1)
    return {
        tid
        for tid in threads
        if number("/proc/%d/task/%s/status" % (pid, tid), b"SigBlk:", 16) & bit
    }


def _read(path: str) -> str:
    return content(path).decode("utf-8", "replace")


def within_bounds(taken: List[ProcessReport], most: int) -> List[ProcessReport]:
    """The processes with `most` characters of stacks; the stacks of the last processes are left
    out."""
    left_out = "left out: the stacks of this worker are larger than %d MiB" % (most >> 20)
    room = most
    for each in taken:
        room -= len(each["dump"] or "")
        if room < 0 and each["dump"] is not None:
            each["dump"] = None
            each["why"] = left_out
    return taken
