"""Readers of well-known command lines: `torchrun ...`, `accelerate launch ...`, `python ...` become
fields of a job.

Pure: words in, a `LaunchLine` out; files are read only through the `Machine`. Each launcher has a
module, whose tables hold the meaning of its options; tests compare the tables with the launcher's
own parser.
"""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple

from client_lib.errors import NotSupported
from client_lib.launch_lines import accelerate, torchrun
from client_lib.launch_lines.lines import LaunchLine, Machine
from client_lib.launcher_protocol.plan import RANK_VARIABLES

__all__ = ["LaunchLine", "Machine", "read"]

_TORCH_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torch.distributed.launch",
}
_ACCELERATE_MODULES = ("accelerate.commands.launch", "accelerate.commands.accelerate_cli")
_PYTHON = re.compile(r"python[\d.]*")
# the shell's own, whatever its folder; any other is named on purpose
_PLAIN = ("python", "python3")


def read(words: Sequence[str], machine: Machine) -> LaunchLine | None:
    """The fields that the line means; None: its first word is no launcher that is read here, but a
    script or a command.

    Raises:
        InvalidRequest: an option that the launcher does not know, or a value that it would not
            take.
        NotSupported: a feature of the launcher that does not exist here, by name, with the way out.
    """
    folder, program = os.path.split(words[0] if words else "")
    beside = os.path.join(folder, "python")
    python_named = beside if folder and machine.is_file(beside) else None
    if program == "torchrun":
        return torchrun.read(program, words[1:], machine, python_named)
    if program == "accelerate" and words[1:2] == ["launch"]:
        return accelerate.read(words[2:], machine, python_named)
    if program == "accelerate-launch":
        return accelerate.read(words[1:], machine, python_named)
    _check_read([program, *words[1:]])
    return _read_python(words, machine) if _PYTHON.fullmatch(program) else None


def _read_python(words: Sequence[str], machine: Machine) -> LaunchLine | None:
    """`python train.py` and `python -m package.module`: one process per GPU, as with a script
    alone. The only process of a job gets no variables of ranks, as in a shell.
    `python -m LAUNCHER ...` is the launcher's own line."""
    python = None if words[0] in _PLAIN else words[0]
    rest = list(words[1:])
    while rest[:1] == ["-u"]:  # ranks are started with PYTHONUNBUFFERED=1
        del rest[0]
    if not rest:
        return None
    if rest[0] == "-m" and len(rest) > 1:
        module = rest[1]
        rest = rest[2:]
        if module in _TORCH_MODULES:
            return torchrun.read(_TORCH_MODULES[module], rest, machine, python)
        if module in _ACCELERATE_MODULES:
            return accelerate.read(rest[1:] if rest[:1] == ["launch"] else rest, machine, python)
        if module.split(".")[0] == "deepspeed":
            _check_read(["deepspeed", *rest])
        runs = {"script": shlex.join([python or "python", "-m", module]), "args": rest}
    elif not rest[0].startswith("-") and rest[0].endswith(".py"):
        runs = {"script": rest[0], "args": rest[1:]}
    else:  # options of the interpreter without a field, or no script: the whole line is a command
        python = None
        runs = {"script": shlex.quote(words[0]), "args": list(words[1:])}
    launcher = os.path.basename(words[0])
    given_by = {"env_variables": f"the {launcher} line"}
    return LaunchLine(
        launcher, {**runs, "env_variables": {RANK_VARIABLES: "0"}}, given_by=given_by, python=python
    )


# --- launchers that do not work inside a job: refused, with the line to write instead


class _Launcher(NamedTuple):
    why: str
    options: str  # options of client-lib; MACHINES and PROCESSES stand for the numbers
    then: str = "each process finds RANK, WORLD_SIZE and MASTER_ADDR in its environment"
    counts: Mapping[str, str] = {}  # options of the launcher that say one of these numbers


# begins what is started: no more options
_STARTED = re.compile(r"\.(py|sh)$|^\.{0,2}/|^(ba)?sh$|^python")
_SIZES = "-N MACHINES --processes-per-worker PROCESSES"
_SLURM = {
    "-N": "MACHINES",
    "--nodes": "MACHINES",
    "--ntasks-per-node": "PROCESSES",
    "--tasks-per-node": "PROCESSES",
}
_MPI = _Launcher(
    "starts its processes by ssh or inside an allocation; the workers of a job have neither",
    _SIZES,
    "each process finds RANK, WORLD_SIZE and MASTER_ADDR in its environment, with -t binary "
    "OMPI_COMM_WORLD_RANK, too",
    dict.fromkeys(("-n", "-np", "--np", "-N", "--npernode"), "PROCESSES"),
)
_LAUNCHERS: dict[str, _Launcher] = {
    "deepspeed": _Launcher(
        "reaches its machines by ssh from a hostfile; the workers of a job have neither",
        _SIZES,
        "deepspeed.init_distributed() finds RANK, WORLD_SIZE and MASTER_ADDR in the environment",
        {"--num_nodes": "MACHINES", "--num_gpus": "PROCESSES"},
    ),
    "srun": _Launcher(
        "starts its tasks inside an allocation of Slurm, and a job has none", _SIZES, counts=_SLURM
    ),
    "sbatch": _Launcher(
        "gives a script to Slurm; here the server has the queue, and #SBATCH lines are not read",
        _SIZES,
        counts=_SLURM,
    ),
    "mpirun": _MPI,
    "mpiexec": _MPI,
    "horovodrun": _MPI,
    "uv run": _Launcher(
        "makes the environment that it runs in; a job has that of your shell",
        "",
        "after `uv sync` and with .venv activated it runs in that environment; `--requirement` "
        "adds packages to it",
    ),
    "ray": _Launcher("needs a Ray cluster, which the workers of a job do not form", _SIZES),
}


def _check_read(words: Sequence[str]) -> None:
    """`words`: a line, its first word without the folder. Raises NotSupported: a
    launcher that is not read here.
    """
    name = " ".join(words[:2]) if words[0] == "uv" else words[0]
    launcher = _LAUNCHERS.get(name)
    if launcher is None:
        return
    options = launcher.options
    line = " ".join(takewhile(lambda word: not _STARTED.search(word), words))
    for option, what in launcher.counts.items():  # `--option 2`, `--option=2` or `-N2`
        number = re.search(rf"(?:^|\s){re.escape(option)}[= ]?(\d+)(?=\s|$)", line)
        options = options.replace(what, number[1] if number else what)
    program = "train.py"
    for at, word in enumerate(words):
        is_module = word == "-m" and at > 1 and words[at - 1].startswith("python")
        if word.endswith(".py") or is_module:
            program = shlex.join([*(["python"] if is_module else []), *words[at:]])
            break
    ours = " ".join(filter(None, ["client-lib submit", options, program]))
    raise NotSupported(f"{name} {launcher.why}", hint=f"write `{ours}`: {launcher.then}")
