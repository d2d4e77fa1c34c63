"""Prepares a worker up to the start of its ranks: unpacks the code, finds the script, makes
directories, copies the checkpoints of an earlier job; installs extra packages, runs the job's own
command `setup` and the preflight.

The last three are processes that end before the ranks start, on the launcher's loop; the log shows
what they print.
"""

import contextlib
import os
import time
from functools import partial
from typing import Callable, Iterator, List, NamedTuple, NoReturn, Optional, Sequence, Tuple, Type

from client_lib.durable import copy_folder, make_private_folders, naming, private
from client_lib.launcher_protocol import reasons
from client_lib.launcher_protocol.directory import MARKER, Directory
from client_lib.launcher_protocol.plan import ELASTIC, WorkerPlan
from client_lib.launcher_protocol.rank_processes import (
    Process,
    agent_arguments,
    processes,
    setup_process,
    without_rank_files,
)
from client_lib.launcher_protocol.reasons import CannotStart, reason_of
from client_lib.worker.loop import Loop
from client_lib.worker.programs import RANK_RUNNER, runner_file
from client_lib.worker.rank_end import last_lines
from client_lib.worker.ranks import AddPipe, Exit, Ranks, Run, execute
from client_lib.worker.system import System
from client_lib.worker.worker_log import WorkerLog

_OUTPUT_S = 1.0
"""Longest wait for the rest of an output: a process that was left behind may keep the pipes
open."""
_POLL_S = 0.01
"""Time between two looks for the end of an output."""
_PREFLIGHT_S = 180.0
"""Longest time of the preflight. Its own limits name the worker and end it earlier, unless a driver
or a file system hangs."""
_INSTALLATIONS = 3
"""Most installations of packages: another worker that needs room may remove an environment before
its first use."""
_TYPES = ("pytorch2", "pytorch", "torchrun", ELASTIC, "binary", "binary_exp", "nogpu")
"""Types of jobs that start here."""
_LOCAL_RANK = ("--local_rank", "--local-rank")
"""Spellings of the option that some scripts declare."""
SOURCE_MAX = 2**20
"""Bytes of a script in which that option is looked for: Python parses as much in half a second."""
_COPYING = ".copying"
"""Folder with the copied checkpoints until all are there."""
_INCOMPLETE = ".copying.new"
"""Folder of a copy that has not ended."""


class _Step(NamedTuple):
    """Processes that must end before the next step."""

    what: str
    processes: List[Process]
    reason: Optional[str] = None
    """Reason with which the worker ends if a process of this step fails. None: go on, the next step
    reports it."""
    limit_s: Optional[float] = None
    late: Optional[CannotStart] = None
    """The refusal after `limit_s`."""
    run: Run = execute
    add_pipe: Optional[AddPipe] = None


class Preparation:
    """The preparation of one worker. The caller calls `reap` at each SIGCHLD."""

    def __init__(
        self,
        plan: WorkerPlan,
        directory: Directory,
        system: System,
        log: WorkerLog,
        loop: Loop,
        on_ready: Callable[[WorkerPlan, List[Process]], None],
        on_refused: Callable[[CannotStart], None],
    ) -> None:
        """`on_ready` gets the plan, which then has the environment with the extra packages, and the
        ranks. Either it or `on_refused` is called, once, unless `kill` is called before.
        """
        self._plan = plan
        self._directory = directory
        self._system = system
        self._log = log
        self._loop = loop
        self._on_ready = on_ready
        self._on_refused = on_refused
        self._steps: Iterator[_Step] = self._before_ready()
        self._step: _Step  # the newest; its processes run while `_running` is set
        self._running: Optional[Ranks] = None
        self._is_late = False

    def preflight(self, ranks: Sequence[Process], on_passed: Callable[[], None]) -> None:
        """Check this worker's machine, if the job wants that, when all workers are ready."""
        self._steps = self._before_ranks(ranks, on_passed)
        self._advance()

    def start(self) -> None:
        """Begin with the first step."""
        self._advance()

    def reap(self) -> None:
        """Take the ends of the processes of the running step, and begin the next step after the
        last."""
        if self._running is None or not self._running.reap():
            return
        if self._running.failed:
            _kill(self._running)
        if not self._running.running:
            self._await_output(time.monotonic() + _OUTPUT_S)

    def kill(self) -> None:
        """End the running processes, with all that they have started, and begin nothing more."""
        self._steps = iter(())
        running = self._running
        self._running = None
        if running:
            _kill(running)

    def _before_ready(self) -> Iterator[_Step]:
        found = prepare(self._plan, self._directory)
        if self._plan.requirements:
            yield from self._installation()
            found = prepare(self._plan, self._directory)
        if self._plan.setup:
            yield self._setup()
        self._on_ready(self._plan, found)

    def _setup(self) -> _Step:
        limit_s = self._plan.setup_limit_s
        why = "setup ran for %g min, the limit that stop_timer sets" % ((limit_s or 0) / 60)
        process = setup_process(self._plan, self._directory)
        late = CannotStart(reasons.TIMEOUT, why)
        return _Step("setup", [process], reasons.SETUP_FAILED, limit_s, late)

    def _installation(self) -> Iterator[_Step]:
        from client_lib.worker import requirements

        def listen(_rank: int, _stream: str, fd: int, _shown: str) -> None:
            self._log.listen(fd)

        here = self._directory.path
        # MARKER: by it the process of a dead launcher is found
        variables = {**self._plan.environment, MARKER: here}
        process = Process(-1, -1, ["install"], variables, here)
        installer = requirements.installer(self._plan, self._directory)
        for _ in range(_INSTALLATIONS):
            yield _Step("the installation of packages", [process], run=installer, add_pipe=listen)
            made = requirements.result(self._plan, self._directory)
            if made is not None:
                self._plan = made
                return
        raise CannotStart(
            reasons.START_FAILED, "the environment with the packages was removed again and again"
        )

    def _before_ranks(
        self, ranks: Sequence[Process], on_passed: Callable[[], None]
    ) -> Iterator[_Step]:
        if self._plan.preflight:
            yield self._check_of_machines(ranks)
        on_passed()

    def _check_of_machines(self, ranks: Sequence[Process]) -> _Step:
        """The preflight, in the places of the ranks and with their environment."""
        argv = [self._plan.python or "python3", runner_file("preflight.py", self._directory)]
        checks = [
            rank._replace(
                rank=-1 - rank.local_rank,
                argv=argv,
                environment=without_rank_files(rank.environment),
                stdin=os.devnull,
                is_agent=True,
            )
            for rank in ranks
        ]
        what = "preflight of worker %d" % self._plan.worker
        reason = reasons.PREFLIGHT_FAILED
        why = "%s hangs: it has not ended within %g s" % (what, _PREFLIGHT_S)
        return _Step(what, checks, reason, _PREFLIGHT_S, CannotStart(reason, why))

    def _advance(self, ended: Optional[Exit] = None) -> None:
        """Begin the next step. `ended`: the first failed process of the previous step, or any of
        its processes if none failed.
        """
        try:
            if ended is not None:
                self._check(ended)
            step = next(self._steps, None)
            if step is not None:
                self._begin(step)
        except CannotStart as refused:
            self._on_refused(refused)

    def _begin(self, step: _Step) -> None:
        def end_late() -> None:
            if self._step is step and self._running and self._running.running:
                self._is_late = True
                _kill(self._running)

        self._step = step
        self._running = Ranks(self._system, step.add_pipe or self._log.add_pipe)
        try:
            self._running.start(step.processes, step.run)
        except OSError as error:
            why = "%s: %s" % (error.filename, error.strerror)
            message = "%s could not be started: %s" % (step.what, why)
            raise CannotStart(reasons.START_FAILED, message) from error
        if step.limit_s is not None:
            self._loop.call_later(step.limit_s, end_late)

    def _await_output(self, until: float) -> None:
        if self._log.open_pipes and time.monotonic() < until:
            self._loop.call_later(_POLL_S, lambda: self._await_output(until))
        elif self._running:
            exit = [*self._running.failed, *self._running.exits][0]
            self._running = None
            self._advance(exit)

    def _check(self, exit: Exit) -> None:
        """Raises CannotStart: the step has failed, or took too long."""
        if self._is_late and self._step.late:
            raise self._step.late
        if exit.exit_code == 0 or self._step.reason is None:
            return
        code = exit.exit_code or 0
        how = "ended with exit code %d" % code
        if exit.signal:
            code = 128 + exit.signal
            how = "was killed by signal %d" % exit.signal
        lines = last_lines(self._log.printed_by(exit.rank).lines)
        last = next((": " + line for line in reversed(lines) if line.strip()), "")
        raise CannotStart(self._step.reason, "%s %s%s" % (self._step.what, how, last), code, lines)


def _kill(running: Ranks) -> None:
    running.kill()
    running.end_left_over(kill=True)


@contextlib.contextmanager
def _refusing(
    what: str, otherwise: str = reasons.START_FAILED, *errors: Type[Exception]
) -> Iterator[None]:
    """Raise CannotStart for an OSError, or one of `errors`, that the body raises. `otherwise`: the
    reason, unless a disk is full.
    """
    caught: Tuple[Type[Exception], ...] = (OSError, *errors)
    try:
        yield
    except caught as error:
        raise CannotStart(reason_of(error, otherwise), "%s: %s" % (what, error)) from error


def prepare(plan: WorkerPlan, directory: Directory) -> List[Process]:
    """The ranks' processes, ready to be started. Raises CannotStart."""
    with _refusing("the worker could not be prepared"), naming(directory.path):
        if plan.type not in _TYPES:
            _refuse("type %r does not start here; these do: %s" % (plan.type, ", ".join(_TYPES)))
        # a lost worker that is restarted has it already
        if plan.snapshot and not os.path.isdir(directory.work):
            from client_lib.launcher_protocol.archive import ArchiveRefused, unpack

            with _refusing(
                "the code snapshot could not be unpacked", reasons.CODE_FETCH, ArchiveRefused
            ):
                unpack(plan.snapshot, directory.work, keep_free=plan.keep_free_bytes)
        folder = plan.working_dir_in(directory)
        script = plan.script_in(directory)
        if not os.path.isdir(folder):
            _refuse("the working directory %s does not exist on this machine" % folder)
        if script is not None and not os.path.exists(script):
            _refuse("the script %s does not exist on this machine" % script)
        is_folder = script is not None and os.path.isdir(script)
        if is_folder and not os.path.exists(os.path.join(script or "", "__main__.py")):
            _refuse("the script %s is a directory" % script)
        _make_folders(plan, directory)
        return _processes(plan, directory, script)


def _refuse(message: str) -> NoReturn:
    raise CannotStart(reasons.START_FAILED, message)


_make_open = partial(os.makedirs, exist_ok=True)


def _make_folders(plan: WorkerPlan, directory: Directory) -> None:
    mount = plan.checkpoint_dir
    is_unwritable = os.path.ismount(mount) and not os.access(mount, os.W_OK)
    # the job would fail at its first checkpoint
    if is_unwritable and not os.statvfs(mount).f_flag & os.ST_RDONLY:
        _refuse(
            "user %d can't write to the checkpoint folder %s: Kubernetes made it on the volume "
            "with the owner root and the mode of the volume's top folder" % (os.geteuid(), mount)
        )
    if plan.checkpoints_from and plan.worker == 0:
        with _refusing("the checkpoints of the job before can't be copied"):
            copy_checkpoints(plan.checkpoints_from, plan.checkpoint_dir, plan.keep_free_bytes)
    if plan.from_step is not None and plan.worker == 0 and plan.attempt == 1:
        from client_lib.worker.earlier_step import NoSuchStep, go_back  # here: few jobs do so

        with _refusing("from_step=%d" % plan.from_step, reasons.START_FAILED, NoSuchStep):
            go_back(plan.checkpoint_dir, plan.from_step, plan.job)
    # the folder of checkpoints may be of the user's choice: others may read it
    folders = ((directory.errors, make_private_folders), (plan.checkpoint_dir, _make_open))
    for path, make in folders:
        try:
            make(path)
        except OSError as error:
            why = "%s can't be made: %s" % (path, error.strerror)
            raise CannotStart(reason_of(error, reasons.START_FAILED), why) from error
    if plan.observe:
        make_private_folders(directory.stacks)
    if plan.record_imports:
        open(directory.imports, "w", opener=private).close()


def _processes(plan: WorkerPlan, directory: Directory, script: Optional[str]) -> List[Process]:
    """The ranks, each with the program that it executes."""
    option = plan.local_rank_argument if plan.has_ranks else None
    is_searched = plan.has_ranks and plan.local_rank_auto and not option
    if is_searched and script is not None and os.path.isfile(script):
        with open(script, "rb") as file:
            option = declared_option(file.read(SOURCE_MAX + 1))
    # the arguments of torchrun, which starts the rest of the line
    agent = agent_arguments(plan) if plan.type == ELASTIC else []
    runner = [runner_file(RANK_RUNNER, directory)] if plan.uses_rank_runner else []
    found = []
    for process in processes(plan, directory, option):
        program, *arguments = process.argv
        if script is not None:  # by a path that is valid in the working directory
            arguments = [*agent, *runner, script if plan.snapshot else arguments[0], *arguments[1:]]
        elif program == "python":
            import shutil  # here: scripts do not need it

            path = process.environment.get("PATH", os.defpath)
            if not shutil.which("python", path=path) and shutil.which("python3", path=path):
                program = "python3"  # on a system that has no `python`, such as Debian's images
        found.append(process._replace(argv=[program, *arguments]))
    return found


def copy_checkpoints(pattern: str, checkpoints: str, keep_free: int = 0) -> None:
    """Copy the content of the folder of this name, or glob, to `checkpoints` unless that has
    content. Worker 0 does so for a volume that only workers see; the local runtime copies a folder
    itself. Raises OSError if there is no room."""
    import glob  # here: few jobs continue another

    there = os.listdir(checkpoints) if os.path.isdir(checkpoints) else []
    if _COPYING in there:
        _move_up(checkpoints)
    elif there in ([], [_INCOMPLETE]):
        source = next(filter(os.path.isdir, glob.glob(pattern)), None)
        if source is None:
            return
        if _INCOMPLETE in os.listdir(source):
            raise OSError(
                "the checkpoints in %s are incomplete: their job was stopped while it copied the "
                "checkpoints of an earlier job; resubmit the earlier job" % source
            )
        # in the folder, which may be a mount that can't be renamed
        copy_folder(source, os.path.join(checkpoints, _COPYING), keep_free)
        _move_up(checkpoints)


def _move_up(folder: str) -> None:
    """Complete a copy whose files are all there; a launcher may have been
    killed while it did that.
    """
    copying = os.path.join(folder, _COPYING)
    if os.path.isdir(os.path.join(copying, _COPYING)):  # the copied folder was left like that, too
        _move_up(copying)
    for name in os.listdir(copying):
        os.rename(os.path.join(copying, name), os.path.join(folder, name))
    os.rmdir(copying)


def declared_option(source: bytes) -> Optional[str]:
    """The spelling of `--local_rank` that a script declares: the first one that is a string literal
    in a call of `add_argument` or `click.option`. None: there is none, or the source is no Python,
    or too large or too deeply nested.
    """
    if len(source) > SOURCE_MAX or not any(spelling.encode() in source for spelling in _LOCAL_RANK):
        return None
    import ast  # here: few scripts get this far

    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        # the run of the script reports it; MemoryError: the stack of the parser is full
        return None
    for call in ast.walk(tree):
        if isinstance(call, ast.Call):
            name = getattr(call.func, "attr", None) or getattr(call.func, "id", None)
            for argument in call.args if name in ("add_argument", "option") else ():
                if isinstance(argument, ast.Constant) and argument.value in _LOCAL_RANK:
                    return str(argument.value)
    return None
