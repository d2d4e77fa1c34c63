"""Launchers and job files of other systems, which are not run here: each is refused by its kind,
with the whole line to write, made of the numbers and the command that it holds. Pure.
"""

import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from client_lib.errors import ClientLibError, NotSupported
from client_lib.launch_lines.lines import LaunchLine, Machine
from client_lib.launch_lines.unwrapping import (
    ROW_MAX,
    SCRIPT_MAX,
    commands_of,
    rows_of,
    unwrap,
)

Reader = Callable[[Sequence[str]], LaunchLine | None]
"""Reads the line that another launcher starts."""
_VALUE_MAX = 1000
"""Characters of the value of a variable that is filled in."""


_NUMBER_MAX = 10**9
"""No number of machines or processes is as large."""
_DIGITS = re.compile("[0-9]{1,9}")


class Sizes(NamedTuple):
    """Numbers of a launcher's options or of a job file; None: not said."""

    machines: int | None = None
    per_machine: int | None = None
    total: int | None = None

    def over(self, other: "Sizes") -> "Sizes":
        """Fill each number that is missing with the number of `other`."""
        return Sizes(*(mine or theirs for mine, theirs in zip(self, other, strict=True)))

    @property
    def workers(self) -> int | None:
        if self.machines is None and self.total and self.per_machine:
            return max(1, self.total // self.per_machine)
        return self.machines

    @property
    def processes(self) -> int | None:
        if self.per_machine is None and self.total:
            return max(1, self.total // (self.machines or 1))
        return self.per_machine


class _Launcher(NamedTuple):
    why: str
    options: Mapping[str, str] = {}
    """Options that say a number -> the number of `Sizes`."""
    then: str = "each process finds RANK, WORLD_SIZE and MASTER_ADDR in its environment"


_SLURM = {
    "-N": "machines",
    "--nodes": "machines",
    "-n": "total",
    "--ntasks": "total",
    "--ntasks-per-node": "per_machine",
    "--tasks-per-node": "per_machine",
}
_MPI = _Launcher(
    "starts its processes by ssh or inside an allocation; the workers of a job have neither",
    {
        **dict.fromkeys(("-n", "-np", "--np", "-c"), "total"),
        **dict.fromkeys(("-N", "--npernode", "-npernode", "-ppn"), "per_machine"),
    },
    "each process finds RANK, WORLD_SIZE and MASTER_ADDR in its environment, with -t binary "
    "OMPI_COMM_WORLD_RANK, too",
)
_LAUNCHERS: dict[str, _Launcher] = {
    "srun": _Launcher("starts its tasks inside an allocation of Slurm, and a job has none", _SLURM),
    "sbatch": _Launcher("gives a script to Slurm; here the server has the queue", _SLURM),
    "mpirun": _MPI,
    "mpiexec": _MPI,
    "horovodrun": _MPI,
    "ray": _Launcher("needs a Ray cluster, which the workers of a job do not form"),
}
_STARTED = re.compile(r"\.(py|sh)$|^(ba)?sh$|^python")
_STARTERS = ("torchrun", "accelerate", "deepspeed", "uv", "poetry", "conda", "env", "nohup", "time")
_PATH = re.compile(r"^\.{0,2}/")


def check(words: Sequence[str], machine: Machine, read: Reader) -> None:
    """`words`: a line, its first word without the folder. Raises NotSupported for a launcher that
    is not read here."""
    launcher = _LAUNCHERS.get(words[0])
    if launcher is None:
        return
    at = _start(words)
    sizes = _sizes(words[1:at], launcher.options)
    inner = list(words[at:])
    if words[0] == "sbatch" and not any(word.endswith(".py") for word in words):
        text = machine.text(words[-1]) if len(words) > 1 else None
        found = _of_slurm(text, sizes) if text else None
        if found is not None:
            sizes, inner = found
    line = written(sizes, inner or ["train.py"], read, placeholders=True)
    raise NotSupported(f"{words[0]} {launcher.why}", hint=f"write `{line}`: {launcher.then}")


def _start(words: Sequence[str]) -> int:
    """The place of the first word that the launcher starts. A path behind an option is the value
    of the option, unless no program stands behind it: there is no table of all their options."""
    value = None
    for at, word in enumerate(words[1:], 1):
        before = words[at - 1]
        is_behind_option = before.startswith("-") and "=" not in before
        is_path = _PATH.match(word) is not None
        if _STARTED.search(os.path.basename(word)) or word in _STARTERS:
            return at
        if is_path and not is_behind_option:
            return at
        if is_path and value is None:
            value = at
    return len(words) if value is None else value


def _sizes(words: Sequence[str], options: Mapping[str, str]) -> Sizes:
    """`--option 2`, `--option=2` or `-N2`."""
    text = " ".join(words)
    found: dict[str, int] = {}
    for option, name in options.items():
        number = re.search(rf"(?:^|\s){re.escape(option)}[= ]?({_DIGITS.pattern})(?=\s|$)", text)
        if number:
            found[name] = int(number[1])
    return Sizes(**found)


def written(
    sizes: Sizes,
    words: Sequence[str],
    read: Reader,
    *,
    placeholders: bool = False,
    variables: Mapping[str, str] | None = None,
) -> str:
    """The line of ours that trains as these words do on so many machines. A launcher's line that is
    read here stays as it is. `placeholders`: stand for numbers that are not known."""
    options = ["client-lib", "submit"]
    for name, value in (variables or {}).items():
        options += ["-e", f"{name}={value}"]
    try:
        inner = read(words)
    except ClientLibError:
        inner = None
    if inner is not None and not inner.launcher.startswith(("python", "command")):
        told = inner.fields.get("n_workers")
        if told is None and (sizes.workers or 1) > 1:
            options += ["-N", str(sizes.workers)]
        # torchrun alone takes what its line leaves out from the operator's PET_NPROC_PER_NODE, and
        # srun starts it so many times
        left_out = "processes_per_worker" in inner.defaults.keys() - inner.fields.keys()
        default = (sizes.per_machine or 1) if left_out else 1
        if not any("$" in word for word in words):
            if default > 1:
                options += ["--processes-per-worker", str(default)]
            return shlex.join([*options, *words])
        if told is not None:
            options += ["-N", str(told)]
        processes = inner.fields.get("processes_per_worker", default)
        if processes != "default":
            options += ["--processes-per-worker", str(processes)]
    else:
        unknown = placeholders and sizes.total is None
        if sizes.workers is not None or unknown:
            options += ["-N", str(sizes.workers or "MACHINES")]
        if sizes.processes is not None or unknown:
            options += ["--processes-per-worker", str(sizes.processes or "PROCESSES")]
    if inner is None:
        return shlex.join([*options, *words])
    program = f"{inner.fields['script']} {shlex.join(inner.fields['args'])}"
    return f"{shlex.join(options)} {program}".rstrip()


# --- commands of a shell's text

_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_ASSIGNED = re.compile(
    r"^[ \t]*(?:export[ \t]+)?([A-Za-z_]\w*)=([\w.,:/-]+)[ \t\r]*$", re.MULTILINE
)


def _command_in(text: str, variables: Mapping[str, str]) -> list[str] | None:
    """The command of a script that trains: the first that begins with a launcher, else the first
    that runs a file or a module of Python. `variables` replace `$NAME`."""
    given = {**dict(_ASSIGNED.findall(text[:SCRIPT_MAX])), **variables}
    known = {name: value for name, value in given.items() if len(value) <= _VALUE_MAX}
    python: list[str] | None = None
    for row in rows_of(text):
        filled = _VARIABLE.sub(lambda found: known.get(found[1] or found[2], found[0]), row)
        for words in commands_of(filled) if len(filled) <= ROW_MAX else ():
            program = os.path.basename((unwrap(words, Machine()).words or [""])[0])
            if program in _LAUNCHERS or program in _STARTERS[:3]:
                return words
            runs = any(word.endswith(".py") or word == "-m" for word in words[1:])
            if python is None and program.startswith("python") and runs and "pip" not in words:
                python = words
    return python


def _without_srun(words: list[str], sizes: Sizes) -> tuple[Sizes, list[str]]:
    """The numbers and the command behind `srun` or `mpirun` at the front of a command."""
    launcher = _LAUNCHERS.get(os.path.basename(words[0]))
    if launcher is None:
        return sizes, words
    at = _start(words)
    return _sizes(words[1:at], launcher.options).over(sizes), words[at:]


def _of_slurm(text: str, given: Sizes) -> tuple[Sizes, list[str]] | None:
    rows = [row.split()[1:] for row in text.splitlines() if row.startswith("#SBATCH")]
    sizes = given.over(_sizes([word for row in rows for word in row], _SLURM))
    numbers = {
        **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), sizes.workers),
        "SLURM_NTASKS_PER_NODE": sizes.per_machine,
        "SLURM_NTASKS": sizes.total,
    }
    variables = {name: str(number) for name, number in numbers.items() if number}
    words = _command_in(text, variables)
    return _without_srun(words, sizes) if words else None


# --- files


def refuse_file(path: str, text: str, values: object, read: Reader) -> None:
    """Raises NotSupported for a job file of another system. `values`: the file as YAML; None: it is
    none."""
    if "#SBATCH" in text:
        kind = "script for sbatch"
        found = _of_slurm(text, Sizes())
        job = _Job(*found) if found else _Job(Sizes(), [])
    else:
        table = values if isinstance(values, Mapping) else {}
        jobs = {name: reader(table) for name, reader in _KINDS.items()}
        kind, job = next(
            ((name, job) for name, job in jobs.items() if job), ("", _Job(Sizes(), []))
        )
        if not kind:
            return
    words = job.words or ["train.py"]
    line = written(job.sizes, words, read, variables=job.variables)
    raise NotSupported(f"{path} is a {kind}, which is not read here", hint=f"write `{line}`")


class _Job(NamedTuple):
    sizes: Sizes
    words: list[str]
    variables: Mapping[str, str] = {}


def _table(value: object, *keys: str) -> Mapping[str, Any]:
    """The table at this place; empty: there is none."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def _number(value: object) -> int | None:
    """The number of machines, processes or GPUs that a value is, also as text; None: it is none."""
    if isinstance(value, str) and _DIGITS.fullmatch(value):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 0 < value < _NUMBER_MAX else None


def _container(container: Mapping[str, Any], sizes: Sizes) -> _Job:
    """A container of Kubernetes, or the trainer of a TrainJob, which has the same keys."""
    parts = [container.get("command"), container.get("args")]
    words = [str(word) for part in parts if isinstance(part, list) for word in part]
    entries = container.get("env")
    pairs = {
        str(each["name"]): str(each["value"])
        for each in (entries if isinstance(entries, list) else [])
        if isinstance(each, Mapping) and {"name", "value"} <= each.keys()
    }
    if words and os.path.basename(words[0]) in ("sh", "bash") and len(words) > 2:
        numbers = {"PET_NNODES": sizes.machines, "PET_NPROC_PER_NODE": sizes.per_machine}
        known = {name: str(number) for name, number in numbers.items() if number}
        words = _command_in(words[2], {**known, **pairs}) or words
    return _Job(sizes, words, pairs)


def _pytorchjob(file: Mapping[str, Any]) -> _Job | None:
    if file.get("kind") != "PyTorchJob":
        return None
    replicas = _table(file, "spec", "pytorchReplicaSpecs")
    machines = sum(_number(_table(replicas, name).get("replicas", 1)) or 0 for name in replicas)
    sizes = Sizes(machines or None, _number(_table(file, "spec").get("nprocPerNode")))
    for name in ("Worker", "Master"):
        containers = _table(replicas, name, "template", "spec").get("containers")
        if isinstance(containers, list) and containers:
            return _container(_table(containers[0]), sizes)
    return _Job(sizes, [])


def _trainjob(file: Mapping[str, Any]) -> _Job | None:
    if file.get("kind") != "TrainJob":
        return None
    trainer = _table(file, "spec", "trainer")
    sizes = Sizes(_number(trainer.get("numNodes")), _number(trainer.get("numProcPerNode")))
    return _container(trainer, sizes)


def _gpus(value: object) -> int | None:
    """The number of `A100:8`, `{A100: 8}`, `{count: 8}` or 8."""
    if isinstance(value, Mapping):
        numbers = [_number(each) for each in value.values()]
        return next(filter(None, numbers), None)
    return _number(value.rpartition(":")[2] if isinstance(value, str) else value)


def _skypilot(file: Mapping[str, Any]) -> _Job | None:
    run = file.get("run")
    if not isinstance(run, str):
        return None
    machines = _number(file.get("num_nodes"))
    gpus = _gpus(_table(file, "resources").get("accelerators"))
    variables = {str(key): str(text) for key, text in _table(file, "envs").items()}
    known = {
        "SKYPILOT_NUM_NODES": str(machines or 1),
        "SKYPILOT_NUM_GPUS_PER_NODE": str(gpus or 1),
        **variables,
    }
    return _Job(Sizes(machines), _command_in(run, known) or [], variables)


def _dstack(file: Mapping[str, Any]) -> _Job | None:
    commands = file.get("commands")
    if file.get("type") not in ("task", "service") or not isinstance(commands, list):
        return None
    nodes = _number(file.get("nodes"))
    gpus = _gpus(_table(file, "resources").get("gpu"))
    entries = file.get("env")
    pairs = entries if isinstance(entries, list) else []
    variables = {
        **{str(key): str(text) for key, text in _table(file, "env").items()},
        **dict(str(each).split("=", 1) for each in pairs if "=" in str(each)),
    }
    known = {
        "DSTACK_NODES_NUM": str(nodes or 1),
        "DSTACK_GPUS_PER_NODE": str(gpus or 1),
        "DSTACK_GPUS_NUM": str((gpus or 1) * (nodes or 1)),
        **variables,
    }
    return _Job(Sizes(nodes), _command_in("\n".join(map(str, commands)), known) or [], variables)


_KINDS: dict[str, Callable[[Mapping[str, Any]], _Job | None]] = {
    "PyTorchJob of Kubeflow": _pytorchjob,
    "TrainJob of Kubeflow": _trainjob,
    "task of SkyPilot": _skypilot,
    "task of dstack": _dstack,
}
