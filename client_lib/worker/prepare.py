"""Prepares a worker up to the start of its ranks: unpacks the code, finds the script, makes directories, copies the
checkpoints of an earlier job, and makes the ranks' processes.
"""

import contextlib
import os
from typing import Iterator, List, Optional, Sequence, Tuple, Type

from client_lib.worker import elastic
from client_lib.worker.directory import Directory
from client_lib.worker.disk import check_room, is_full, naming, size_of
from client_lib.worker.outcome import CODE_FETCH, START_FAILED, STORAGE_FULL
from client_lib.worker.plan import ELASTIC, WorkerPlan
from client_lib.worker.rank_environment import Process, has_ranks, processes, script_path, uses_rank_runner, working_dir

_TYPES = ("pytorch2", "pytorch", "torchrun", ELASTIC, "binary", "binary_exp", "nogpu")
_LOCAL_RANK = ("--local_rank", "--local-rank")
_COPYING, _INCOMPLETE = ".copying", ".copying.new"


class CannotStart(Exception):
    """No rank can be started. `reason` is a value of client_lib.spec.states.Reason."""

    def __init__(self, reason: str, message: str, exit_code: int = 1, last_lines: Sequence[str] = ()) -> None:
        """`exit_code`, `last_lines`: of the program that was to prepare the worker."""
        super().__init__(message)
        self.reason, self.exit_code, self.last_lines = reason, exit_code, last_lines


def reason_of(error: Exception, otherwise: str) -> str:
    """The reason of a failure: a full disk, or the other one."""
    return STORAGE_FULL if is_full(error) else otherwise


def prepare(plan: WorkerPlan, directory: Directory) -> List[Process]:
    """The ranks' processes, ready to be started. Raises CannotStart."""
    with _refusing("the worker could not be prepared"), naming(directory.path):
        return _prepare(plan, directory)


@contextlib.contextmanager
def _refusing(what: str, otherwise: str = START_FAILED, *errors: Type[Exception]) -> Iterator[None]:
    """Raise CannotStart for an OSError, or one of `errors`. `otherwise`: its reason unless a disk is full."""
    caught: Tuple[Type[Exception], ...] = (OSError, *errors)
    try:
        yield
    except caught as error:
        raise CannotStart(reason_of(error, otherwise), "%s: %s" % (what, error)) from error


def _prepare(plan: WorkerPlan, directory: Directory) -> List[Process]:
    if plan.type not in _TYPES:
        raise CannotStart(START_FAILED, "type %r does not start here; these do: %s" % (plan.type, ", ".join(_TYPES)))
    if plan.snapshot and not os.path.isdir(directory.work):  # a lost worker that is restarted has it already
        _unpack(plan.snapshot, directory.work, plan.keep_free_bytes)
    folder = working_dir(plan, directory)
    if not os.path.isdir(folder):
        raise CannotStart(START_FAILED, "the working directory %s does not exist on this machine" % folder)
    script = script_path(plan, directory)
    if script is not None:
        _check_script(script)
    _check_mount(plan.checkpoint_dir)
    if plan.checkpoints_from and plan.worker == 0:
        with _refusing("the checkpoints of the job before can't be copied"):
            copy_checkpoints(plan.checkpoints_from, plan.checkpoint_dir, plan.keep_free_bytes)
    for path in (directory.errors, plan.checkpoint_dir):
        _make(path)
    if plan.observe:
        os.makedirs(directory.stacks, mode=0o700, exist_ok=True)
    if plan.record_imports:
        open(directory.imports, "w").close()
    started = processes(plan, directory, _local_rank_option(plan, script))
    if script is None:
        return [process._replace(argv=_command(process)) for process in started]
    return [process._replace(argv=_python_argv(plan, directory, script, process.argv)) for process in started]


def _command(process: Process) -> List[str]:
    """The command; `python` becomes `python3` on a system that has no `python`, such as Debian's images."""
    import shutil  # here: scripts do not need it

    program, path = process.argv[0], process.environment.get("PATH", os.defpath)
    if program == "python" and not shutil.which(program, path=path) and shutil.which("python3", path=path):
        program = "python3"
    return [program] + process.argv[1:]


def script_folder(plan: WorkerPlan, directory: Directory) -> List[str]:
    """The folders that may hold the script's train.log: the working directory and the script's own."""
    script = script_path(plan, directory)
    return [working_dir(plan, directory)] + ([os.path.dirname(script)] if script else [])


def _unpack(archive: str, target: str, keep_free: int) -> None:
    from client_lib.worker.archive import ArchiveRefused, unpack  # here: code in place needs no tarfile

    with _refusing("the code snapshot could not be unpacked", CODE_FETCH, ArchiveRefused):
        unpack(archive, target, keep_free=keep_free)


def _check_script(script: str) -> None:
    if not os.path.exists(script):
        raise CannotStart(START_FAILED, "the script %s does not exist on this machine" % script)
    if os.path.isdir(script) and not os.path.exists(os.path.join(script, "__main__.py")):
        raise CannotStart(START_FAILED, "the script %s is a directory" % script)


def _check_mount(folder: str) -> None:
    """Raises CannotStart: a mounted folder can't be written to. The job would fail at its first checkpoint."""
    if not os.path.ismount(folder) or os.access(folder, os.W_OK) or os.statvfs(folder).f_flag & os.ST_RDONLY:
        return
    raise CannotStart(
        START_FAILED,
        "user %d can't write to the checkpoint folder %s: Kubernetes made it on the volume with the owner root and the "
        "mode of the volume's top folder" % (os.geteuid(), folder),
    )


def copy_checkpoints(pattern: str, checkpoints: str, keep_free: int = 0) -> None:
    """Copy the content of the folder of this name, or glob, to `checkpoints` unless that has content. May take long.

    Worker 0 does so before any rank starts, for a volume that only workers see; the local
    runtime copies a folder itself. Raises OSError if there is no room.
    """
    import glob  # here: few jobs continue another

    there = os.listdir(checkpoints) if os.path.isdir(checkpoints) else []
    if _COPYING in there:
        _move_up(checkpoints)
    elif there in ([], [_INCOMPLETE]):
        source = next(filter(os.path.isdir, glob.glob(pattern)), None)
        if source is None:
            return
        if _INCOMPLETE in os.listdir(source):
            what = (
                "the checkpoints in %s are incomplete: their job was stopped while it copied those of an earlier job; "
                "resubmit the earlier job"
            )
            raise OSError(what % source)
        # in the folder, which may be a mount that can't be renamed
        copy_folder(source, os.path.join(checkpoints, _COPYING), keep_free)
        _move_up(checkpoints)


def _move_up(folder: str) -> None:
    """Complete a copy whose files are all there; a launcher may have been killed while it did that."""
    copying = os.path.join(folder, _COPYING)
    if os.path.isdir(os.path.join(copying, _COPYING)):  # the copied folder was left like that, too
        _move_up(copying)
    for name in os.listdir(copying):
        os.rename(os.path.join(copying, name), os.path.join(folder, name))
    os.rmdir(copying)


def copy_folder(source: str, target: str, keep_free: int) -> None:
    """Copy a folder. `target`, which may be an empty folder, has a complete copy or none.

    Raises OSError, also if fewer than `keep_free` bytes of the disk would stay free.
    """
    import shutil

    incomplete = target + ".new"
    shutil.rmtree(incomplete, ignore_errors=True)  # of a launcher that was killed
    os.makedirs(os.path.dirname(target), exist_ok=True)
    check_room(os.path.dirname(target), size_of(source), keep_free)
    try:
        shutil.copytree(source, incomplete, symlinks=True)
        os.rename(incomplete, target)  # replaces an empty one, which another worker may have made meanwhile
    except BaseException:
        shutil.rmtree(incomplete, ignore_errors=True)
        raise


def _make(path: str) -> None:
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise CannotStart(reason_of(error, START_FAILED), "%s can't be made: %s" % (path, error.strerror)) from error


def _local_rank_option(plan: WorkerPlan, script: Optional[str]) -> Optional[str]:
    if not has_ranks(plan):
        return None
    if plan.local_rank_argument or not plan.local_rank_auto or script is None or not os.path.isfile(script):
        return plan.local_rank_argument
    with open(script, "rb") as file:
        return declared_option(file.read())


def declared_option(source: bytes) -> Optional[str]:
    """The spelling of `--local_rank` that a script declares: the first one that is a string literal in a call of
    `add_argument` or `click.option`. None: there is none, or the source is no Python.
    """
    if not any(spelling.encode() in source for spelling in _LOCAL_RANK):
        return None
    import ast  # here: few scripts get this far

    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):  # the run of the script reports it
        return None
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and _declares(call.func):
            for argument in call.args:
                if isinstance(argument, ast.Constant) and argument.value in _LOCAL_RANK:
                    return str(argument.value)
    return None


def _declares(function: object) -> bool:
    name = getattr(function, "attr", None) or getattr(function, "id", None)
    return name in ("add_argument", "option")


def _python_argv(plan: WorkerPlan, directory: Directory, script: str, argv: List[str]) -> List[str]:
    """The script by a path that is valid in the working directory, after the rank runner if that is used."""
    agent = elastic.agent_arguments(plan) if plan.type == ELASTIC else []  # torchrun's, which starts the rest
    runner = [runner_file("rank_runner.py", directory)] if uses_rank_runner(plan) else []
    return [argv[0], *agent, *runner, script if plan.snapshot else argv[1], *argv[2:]]


def runner_file(name: str, directory: Directory) -> str:
    """A module of this package as a file that any interpreter can run."""
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), name)
    if os.path.exists(beside):
        return beside
    import pkgutil  # here: only a zipapp reads it

    source = pkgutil.get_data("client_lib.worker", name)
    assert source is not None
    path = os.path.join(directory.path, name)
    with open(path, "wb") as file:
        file.write(source)
    return path
