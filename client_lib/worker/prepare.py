"""What must be true before a rank can start: code unpacked, script found, directories made. Then the ranks' processes.

Standard library only, Python >= 3.8.
"""

import os
from typing import List, Optional

from client_lib.worker import elastic
from client_lib.worker.directory import Directory
from client_lib.worker.environment import Process, processes, script_path, uses_rank_runner, working_dir
from client_lib.worker.local_rank import declared_option
from client_lib.worker.outcome import CODE_FETCH, START_FAILED
from client_lib.worker.plan import WorkerPlan

_TYPES = ("pytorch2", "pytorch", "torchrun", elastic.TYPE, "binary", "binary_exp", "nogpu")
_RUNNER = "rank_runner.py"


class Refused(Exception):
    """No rank can be started. `reason` is a value of client_lib.spec.states.Reason."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def prepare(plan: WorkerPlan, directory: Directory) -> List[Process]:
    """The ranks' processes, ready to be started. Raises Refused."""
    if plan.type not in _TYPES:
        raise Refused(START_FAILED, "type %r does not start here; these do: %s" % (plan.type, ", ".join(_TYPES)))
    if plan.snapshot and not os.path.isdir(directory.work):  # it is there where a lost worker is started again
        _unpack(plan.snapshot, directory.work)
    folder = working_dir(plan, directory)
    if not os.path.isdir(folder):
        raise Refused(START_FAILED, "the working directory %s does not exist on this machine" % folder)
    script = script_path(plan, directory)
    if script is not None:
        _check_script(script)
    if plan.checkpoints_from and plan.worker == 0:
        _hand_on(plan.checkpoints_from, plan.checkpoint_dir)
    for path in (directory.errors, plan.checkpoint_dir):
        _make(path)
    if plan.record_imports:
        open(directory.imports, "w").close()
    started = processes(plan, directory, _local_rank_option(plan, script))
    if script is None:
        return [process._replace(argv=_command(process)) for process in started]
    return [process._replace(argv=_python_argv(plan, directory, script, process.argv)) for process in started]


def _command(process: Process) -> List[str]:
    """`python` is what people write, also where it has no other name than python3, as in Debian's images."""
    import shutil  # here: a script needs none

    program, path = process.argv[0], process.environment.get("PATH", os.defpath)
    if program == "python" and not shutil.which(program, path=path) and shutil.which("python3", path=path):
        program = "python3"
    return [program] + process.argv[1:]


def script_folder(plan: WorkerPlan, directory: Directory) -> List[str]:
    """The folders where a script's train.log may be: the working directory, and its own."""
    script = script_path(plan, directory)
    return [working_dir(plan, directory)] + ([os.path.dirname(script)] if script else [])


def _unpack(archive: str, target: str) -> None:
    from client_lib.worker.archive import ArchiveRefused, unpack  # here: code in place needs no tarfile

    try:
        unpack(archive, target)
    except (ArchiveRefused, OSError) as error:
        raise Refused(CODE_FETCH, "the code snapshot could not be unpacked: %s" % error) from error


def _check_script(script: str) -> None:
    if not os.path.exists(script):
        raise Refused(START_FAILED, "the script %s does not exist on this machine" % script)
    if os.path.isdir(script) and not os.path.exists(os.path.join(script, "__main__.py")):
        raise Refused(START_FAILED, "the script %s is a directory" % script)


def _hand_on(pattern: str, checkpoints: str) -> None:
    from client_lib.worker.checkpoints import hand_on  # here: few jobs repeat another

    try:
        hand_on(pattern, checkpoints)
    except OSError as error:
        raise Refused(START_FAILED, "the checkpoints of the job before can't be copied: %s" % error) from error


def _make(path: str) -> None:
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise Refused(START_FAILED, "%s can't be made: %s" % (path, error.strerror)) from error


def _local_rank_option(plan: WorkerPlan, script: Optional[str]) -> Optional[str]:
    if plan.local_rank_argument or not plan.local_rank_auto or script is None or not os.path.isfile(script):
        return plan.local_rank_argument
    with open(script, "rb") as file:
        return declared_option(file.read())


def _python_argv(plan: WorkerPlan, directory: Directory, script: str, argv: List[str]) -> List[str]:
    """The script by the path that works from the working directory, and through the rank runner where it is used."""
    python, name, arguments = argv[0], argv[1], argv[2:]
    if plan.snapshot:
        name = script
    return [python] + _runner(plan, directory) + [name] + arguments


def _runner(plan: WorkerPlan, directory: Directory) -> List[str]:
    """What stands before the script: torchrun's agent, which starts what follows, and the rank runner."""
    agent = elastic.agent(plan) if plan.type == elastic.TYPE else []
    return agent + ([runner_file(_RUNNER, directory)] if uses_rank_runner(plan) else [])


def runner_file(name: str, directory: Directory) -> str:
    """A module of this package as a file that any interpreter can run."""
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), name)
    if os.path.exists(beside):
        return beside
    import pkgutil  # here: only a zipapp needs it

    source = pkgutil.get_data("client_lib.worker", name)
    assert source is not None
    path = os.path.join(directory.path, name)
    with open(path, "wb") as file:
        file.write(source)
    return path
