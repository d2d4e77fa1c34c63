"""Stacks of the processes of a running job: the answer of `GET /jobs/{name}/stacks`, how it is read
from the text that faulthandler writes, and how it is shown. Pure."""

import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from client_lib.spec.replace import replaced
from client_lib.spec.validation import Lenient
from client_lib.spec.wording import spans

_HEADER = re.compile(
    r"(?P<kind>Current thread|Thread) (?P<id>0x[0-9a-f]+)(?: \[(?P<name>.*)\])? \(most recent "
    r"call first"
)
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)')
_INSTALLED = re.compile(r"^<|/(site|dist)-packages/|/lib(64)?/python\d")
# functions of torch around the function that was called
_WRAPPERS = ("wrapper", "decorate_context", "inner")
# Modules of client_lib.worker: their frames are below the script's frames, and above them where
# they wrap a function of torch. The warm pool imports the modules from which rank_runner.py is
# joined.
_RANK_RUNNER = re.compile(r"/(rank_runner|client_lib/worker/rank_runner/\w+)\.py$")
_FUNCTION_RUNNER = re.compile(r"/function_runner\.py$")
_STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "waiting for a disk or a device",
    "T": "stopped",
    "t": "stopped by a debugger",
    "I": "idle",
}


class Frame(Lenient):
    """One call of a stack."""

    function: str
    file: str
    line: int | None = None


class ThreadStack(Lenient):
    """The stack of one Python thread."""

    id: str
    """Identifier within its process, hexadecimal."""
    name: str | None = None
    """Name that the script gave it; known from Python 3.14 on."""
    main: bool = False
    """The thread that runs the script, as a rule: it has taken the signal."""
    frames: list[Frame] = []
    """Innermost first; empty for a thread that runs no Python code."""


class ProcessStacks(Lenient):
    """One process of a rank."""

    pid: int
    """Number of the process on its machine, or in its pod."""
    parent: int | None = None
    """Pid of its parent; the parent of the rank's own process is the launcher."""
    name: str = ""
    state: str = ""
    """`running`, `sleeping`, and so on, from /proc."""
    wchan: str | None = None
    """Function of the kernel in which it sleeps, if the kernel tells it."""
    cpu_s: float | None = None
    """Seconds of CPU time that it has used."""
    threads: list[ThreadStack] = []
    problem: str | None = None
    """The reason why there are no threads."""

    @property
    def main_thread(self) -> ThreadStack | None:
        return next(
            (thread for thread in self.threads if thread.main),
            self.threads[-1] if self.threads else None,
        )

    @property
    def script_frames(self) -> Sequence[Frame]:
        """Frames of the main thread above multiprocessing's own: a forked child has all
        of the call that forked it.
        """
        frames = self.main_thread.frames if self.main_thread else []
        of_process = [frame.file.endswith("/multiprocessing/process.py") for frame in frames]
        return frames[: of_process.index(True)] or frames if True in of_process else frames


class RankStacks(Lenient):
    """One rank: its own process first, then its children."""

    rank: int
    worker: int
    processes: list[ProcessStacks]


class JobStacks(Lenient):
    """The stacks of all processes of a job at one moment. `str()` groups ranks with equal
    stacks.
    """

    job: str
    attempt: int
    time: datetime
    ranks: list[RankStacks]
    groups: list[str] = []
    """A line for each group of ranks with equal stacks."""
    problems: list[str] = []
    """A sentence for each worker without an answer."""

    def __str__(self) -> str:
        return "\n".join([*groups(self.ranks), *self.problems])


# --- reading


def read_worker(worker: int, processes: Iterable[Mapping[str, Any]]) -> list[RankStacks]:
    """The ranks of a worker. Raises ValueError for content that launchers do not send."""
    ranks: dict[int, list[ProcessStacks]] = {}
    for sent in processes:
        ranks.setdefault(int(sent.get("rank", -1)), []).append(read_process(sent))
    return [RankStacks(rank=rank, worker=worker, processes=found) for rank, found in ranks.items()]


def read_process(sent: Mapping[str, Any]) -> ProcessStacks:
    """The process as a launcher has sent it (client_lib.worker.stacks). Raises
    ValueError for other content.
    """
    state = str(sent.get("state", ""))
    threads = parse(str(sent.get("dump") or ""))
    problem = None if threads else str(sent.get("why") or "it has no Python threads")
    return ProcessStacks.model_validate(
        {
            "pid": sent.get("pid"),
            "parent": sent.get("parent"),
            "name": str(sent.get("name", "")),
            "state": _STATES.get(state, state),
            "wchan": sent.get("wchan"),
            "cpu_s": sent.get("cpu_s"),
            "threads": threads,
            "problem": problem,
        }
    )


def parse(text: str) -> list[ThreadStack]:
    """The threads in a text of faulthandler, without frames and threads of our own
    runners; other lines are ignored.
    """
    threads: list[ThreadStack] = []
    for line in text.splitlines():
        if header := _HEADER.match(line):
            is_main = header["kind"] != "Thread"
            threads.append(
                ThreadStack(id=header["id"], name=header["name"] or None, main=is_main, frames=[])
            )
        elif threads and (frame := _FRAME.match(line)):
            number = int(frame["line"]) if frame["line"].isdigit() else None
            threads[-1].frames.append(
                Frame(function=frame["function"], file=frame["file"], line=number)
            )
    shown = [replaced(thread, frames=_of_script(thread.frames)) for thread in threads]
    return [
        ours
        for ours, read in zip(shown, threads, strict=True)
        if ours.main or ours.frames or not read.frames
    ]


def _of_script(frames: list[Frame]) -> list[Frame]:
    """The frames above the frame of the runner that has started the script."""
    end = next(
        (n for n, f in enumerate(frames) if _RANK_RUNNER.search(f.file) and f.function == "_run"),
        len(frames),
    )
    while end > 0 and _is_runner(frames[end - 1]):
        end -= 1
    return frames[:end]


def _is_runner(frame: Frame) -> bool:
    return bool(_RANK_RUNNER.search(frame.file) or _FUNCTION_RUNNER.search(frame.file))


def _is_installed(frame: Frame) -> bool:
    """True for a frame of a library, or of our runners: none of the user's own code."""
    return bool(_INSTALLED.search(frame.file)) or _is_runner(frame)


def _base(frame: Frame) -> str:
    return posixpath.basename(frame.file)


# --- showing


def groups(ranks: Iterable[RankStacks]) -> list[str]:
    """A line for each group of ranks whose main threads have equal stacks, the largest group first;
    then their children.
    """
    own = [(rank.rank, process) for rank in ranks for process in rank.processes[:1]]
    children = [(rank.rank, process) for rank in ranks for process in rank.processes[1:]]
    lines = [f"{named(numbers)}: {what}" for numbers, what in _same(own)]
    for numbers, what in _same(children):
        processes = "process" if len(numbers) == 1 else "processes"
        lines.append(f"{len(numbers)} child {processes} of {named(numbers)}: {what}")
    return lines


def _same(processes: Sequence[tuple[int, ProcessStacks]]) -> list[tuple[list[int], str]]:
    found: dict[object, list[tuple[int, ProcessStacks]]] = {}
    for rank, process in processes:
        thread = process.main_thread
        key = (
            tuple((f.function, f.file, f.line) for f in thread.frames)
            if thread
            else _without_stack(process)
        )
        found.setdefault(key, []).append((rank, process))
    members = sorted(found.values(), key=lambda same: (-len(same), same[0][0]))
    return [([rank for rank, _ in same], place(same[0][1])) for same in members]


def place(process: ProcessStacks) -> str:
    """The place of the main thread on a line: the innermost function, and the
    user's lines that lead to it.
    """
    frames = process.script_frames
    if not frames:
        return "no Python code" if process.main_thread else _without_stack(process)
    inner = frames[0]
    own = [frame for frame in frames if not _is_installed(frame)]
    if own[:1] == [inner]:
        return " <- ".join(map(_at, own[:2]))
    begin = own[0] if own else frames[-1]
    return _at(inner) if begin is inner else f"{inner.function} <- {_at(begin)}"


class Place(NamedTuple):
    """The place of a main thread, as a sentence names it."""

    function: str
    """Function that the user's line has called; the user's own function if
    that is the innermost one.
    """
    line: str
    """`train.py:41`: the innermost line of the user's code."""
    below: Sequence[Frame]
    """Frames of libraries below that line, innermost first."""

    def __str__(self) -> str:
        return f"{self.function} ({self.line})"


def call(process: ProcessStacks) -> Place | None:
    """The place of the main thread; None: it has no stack of Python functions."""
    frames = process.script_frames
    if not frames:
        return None
    own = next(
        (number for number, frame in enumerate(frames) if not _is_installed(frame)),
        len(frames) - 1,
    )
    below = frames[:own]
    called = [frame.function for frame in reversed(below) if frame.function not in _WRAPPERS]
    public = [name for name in called if not name.startswith("_")]
    function = (public or called or [frames[own].function])[0]
    return Place(function, f"{_base(frames[own])}:{frames[own].line or '?'}", below)


def has_left(process: ProcessStacks) -> bool:
    """True if the script has ended, and the interpreter waits for its other threads."""
    thread = process.main_thread
    first = thread.frames[-1] if thread and thread.frames else None
    return first is not None and (_base(first), first.function) == ("threading.py", "_shutdown")


def _at(frame: Frame) -> str:
    return f"{frame.function} ({_base(frame)}:{frame.line or '?'})"


def _without_stack(process: ProcessStacks) -> str:
    where = f" in {process.wchan}" if process.wchan else ""
    return f"{process.name} is {process.state}{where}, without a stack: {process.problem}"


def details(rank: RankStacks) -> list[str]:
    """Format a rank's processes and threads, one per line."""
    lines = []
    for process in rank.processes:
        where = f" in {process.wchan}" if process.wchan else ""
        used = "" if process.cpu_s is None else f", {process.cpu_s:.2f} s of CPU"
        lines.append(
            f"rank {rank.rank}, process {process.pid} ({process.name}): "
            f"{process.state}{where}{used}"
        )
        lines += [f"  {process.problem}"] if process.problem else []
        for thread in sorted(process.threads, key=lambda each: not each.main):
            name = f" {thread.name}" if thread.name else ""
            lines.append(f"  {'main thread' if thread.main else 'thread'} {thread.id}{name}")
            lines += [
                f"    {frame.function} ({frame.file}:{frame.line or '?'})"
                for frame in thread.frames
            ]
            lines += [] if thread.frames else ["    no Python code"]
    return lines


def named(numbers: Iterable[int], what: str = "rank") -> str:
    """`rank 1`, `ranks 0, 2-7`."""
    one_each = set(numbers)
    return f"{what if len(one_each) == 1 else f'{what}s'} {spans(one_each, ', ')}"
