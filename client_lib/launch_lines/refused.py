"""Refuses lines of launchers that do not work inside a job, with the line to write instead. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple

from client_lib.errors import NotSupported


class _Launcher(NamedTuple):
    """`counts` are options of the launcher that say the number of machines or of processes on each of them."""

    why: str
    options: str
    """Options of ours; MACHINES and PROCESSES stand for the numbers."""
    then: str = "each process finds RANK, WORLD_SIZE and MASTER_ADDR in its environment"
    counts: Mapping[str, str] = {}


_PROGRAM = re.compile(r"\.(py|sh)$|^\.{0,2}/|^(ba)?sh$|^python")
"""The first word of what the launcher starts; later words are not its options."""
_SIZES = "-N MACHINES --processes-per-worker PROCESSES"
_SLURM = dict.fromkeys(("-N", "--nodes"), "MACHINES") | dict.fromkeys(
    ("--ntasks-per-node", "--tasks-per-node"), "PROCESSES"
)
_MPI = _Launcher(
    "starts its processes by ssh or inside an allocation; the workers of a job have neither",
    _SIZES,
    "each process finds RANK, WORLD_SIZE and MASTER_ADDR in its environment, with -t binary OMPI_COMM_WORLD_RANK, too",
    dict.fromkeys(("-n", "-np", "--np", "-N", "--npernode"), "PROCESSES"),
)
_LAUNCHERS: dict[str, _Launcher] = {
    "deepspeed": _Launcher(
        "reaches its machines by ssh from a hostfile; the workers of a job have neither",
        _SIZES,
        "deepspeed.init_distributed() finds RANK, WORLD_SIZE and MASTER_ADDR in the environment",
        {"--num_nodes": "MACHINES", "--num_gpus": "PROCESSES"},
    ),
    "srun": _Launcher("starts its tasks inside an allocation of Slurm, and a job has none", _SIZES, counts=_SLURM),
    "sbatch": _Launcher(
        "gives a script to Slurm; here the server has the queue, and #SBATCH lines are not read", _SIZES, counts=_SLURM
    ),
    "mpirun": _MPI,
    "mpiexec": _MPI,
    "horovodrun": _MPI,
    "uv run": _Launcher(
        "makes the environment that it runs in; a job has that of your shell",
        "",
        "after `uv sync` and with .venv activated it runs in that environment; `--requirement` adds packages to it",
    ),
    "ray": _Launcher("needs a Ray cluster, which the workers of a job do not form", _SIZES),
}


def check(words: Sequence[str]) -> None:
    """`words`: a line, its first word without the folder. Raises NotSupported: a launcher that is not read here."""
    name = " ".join(words[:2]) if words[0] == "uv" else words[0]
    launcher = _LAUNCHERS.get(name)
    if launcher is None:
        return
    options = launcher.options
    own = list(takewhile(lambda word: not _PROGRAM.search(word), words))
    for option, what in launcher.counts.items():
        options = options.replace(what, _number(own, option) or what)
    line = " ".join(filter(None, ["client-lib submit", options, _program(words)]))
    raise NotSupported(f"{name} {launcher.why}", hint=f"write `{line}`: {launcher.then}")


def _number(words: Sequence[str], option: str) -> str | None:
    """The value of `--option 2`, `--option=2` or `-N2`; None: it is not given as a number."""
    found = re.search(rf"(?:^|\s){re.escape(option)}[= ]?(\d+)(?=\s|$)", " ".join(words))
    return found[1] if found else None


def _program(words: Sequence[str]) -> str:
    for at, word in enumerate(words):
        if word.endswith(".py"):
            return shlex.join(words[at:])
        if word == "-m" and at > 1 and words[at - 1].startswith("python"):
            return shlex.join(["python", *words[at:]])
    return "train.py"
