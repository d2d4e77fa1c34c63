"""Readers of well-known command lines: `torchrun ...`, `accelerate launch ...`, `python ...` become
fields of a job.

Pure: words in, a `LaunchLine` out; files are read only through the `Machine`. Each launcher has a
module, whose tables hold the meaning of its options; tests compare the tables with the launcher's
own parser.
"""

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, takewhile
from typing import NamedTuple

from client_lib.errors import ClientLibError, InvalidRequest
from client_lib.launch_lines import accelerate, deepspeed, foreign, torchrun
from client_lib.launch_lines.lines import LaunchLine, Machine
from client_lib.launch_lines.unwrapping import (
    Unwrapped,
    assigned,
    commands_of,
    rows_of,
    script_of,
    shell_text,
    unwrap,
)
from client_lib.launcher_protocol.plan import RANK_VARIABLES

__all__ = ["LaunchLine", "Machine", "read", "refuse_file"]

_TORCH_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torch.distributed.launch",
}
_ACCELERATE_MODULES = ("accelerate.commands.launch", "accelerate.commands.accelerate_cli")
_PROGRAMS = ("torchrun", "accelerate", "accelerate-launch", "deepspeed")
# files of torch that are started by their path
_FILES = {
    "torch/distributed/run.py": "torch.distributed.run",
    "torch/distributed/launch.py": "torch.distributed.launch",
}
_PYTHON = re.compile(r"python[\d.]*")
_MODULE = re.compile(r"\S*python[\d.]* ([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)")
_PROGRAM_WITHIN = 64
"""Words at the beginning of a line that is not read, among which a launcher is looked for."""
# the shell's own, whatever its folder; any other is named on purpose
_PLAIN = ("python", "python3")


def read(words: Sequence[str], machine: Machine, n_workers: int = 1) -> LaunchLine | None:
    """The fields that the line means; None: it is a script or a command, which starts as it is.
    `n_workers`: workers that the job's options ask for.

    Raises:
        InvalidRequest: an option that the launcher does not know, a value that it would not take,
            or a line that would start a training of its own in each of several workers.
        NotSupported: a feature of the launcher that does not exist here, by name, with the way out.
    """
    if not words or words[0].endswith(".py"):
        return None
    found = unwrap(words, machine)
    if found.words and not found.unread:
        plain = _read_plain(found.words, _within(machine, found))
        if plain is not None:
            return _with_wrappers(_module_named(plain, machine), found)
    return _as_it_is(found if found.unread else assigned(words), machine, n_workers)


def _within(machine: Machine, wrappers: Unwrapped) -> Machine:
    """The machine as the program behind these wrappers sees it."""
    return replace(machine, environment={**machine.environment, **wrappers.environment})


def _read_plain(words: Sequence[str], machine: Machine) -> LaunchLine | None:
    """A line without wrappers. None: it begins with no launcher and no interpreter."""
    folder, program = os.path.split(words[0])
    beside = os.path.join(folder, "python")
    python_named = beside if folder and machine.is_file(beside) else None
    if program == "torchrun":
        return torchrun.read(program, words[1:], machine, python_named)
    if program == "accelerate" and list(words[1:2]) == ["launch"]:
        return accelerate.read(words[2:], machine, python_named)
    if program == "accelerate-launch":
        return accelerate.read(words[1:], machine, python_named)
    if program in ("deepspeed", "ds"):
        return deepspeed.read(words[1:], machine, python_named)
    foreign.check([program, *words[1:]], machine, partial(read, machine=machine))
    return _read_python(words, machine) if is_python(program) else None


def _module_named(line: LaunchLine, machine: Machine) -> LaunchLine:
    """The line with a notice where its script looks like a module, and no file has that name."""
    name = _MODULE.fullmatch(str(line.fields["script"]))
    if name is None or machine.is_file(name[1]):
        return line
    notice = (
        f"there is no file {name[1]}; a module is started by `{line.launcher} --module {name[1]}`"
    )
    return replace(line, notices=[*line.notices, notice])


def _with_wrappers(line: LaunchLine, wrappers: Unwrapped) -> LaunchLine:
    """The line with what its wrappers say; the line's own words win."""
    fields = {**wrappers.fields, **line.fields}
    given_by = {**dict.fromkeys(wrappers.fields, "the line"), **line.given_by}
    if wrappers.environment:
        fields["env_variables"] = {**wrappers.environment, **line.fields.get("env_variables", {})}
        given_by.setdefault("env_variables", "the line")
    return replace(
        line,
        fields=fields,
        given_by=given_by,
        notices=[*wrappers.notices, *line.notices],
        python=line.python or wrappers.python,
    )


# --- python


class _Started(NamedTuple):
    """The script or module that an interpreter starts."""

    options: list[str]
    """Options of the interpreter that a job has no field for."""
    module: str | None
    rest: list[str]
    """The file and its arguments, or the arguments of the module."""


_WITH_VALUE = ("-X", "-W")
_STANDARD = ("-u",)  # ranks are started with PYTHONUNBUFFERED=1


def _started(words: Sequence[str]) -> _Started:
    """Split the words behind the name of an interpreter."""
    rest = list(words)
    options: list[str] = []
    while rest and rest[0].startswith("-") and rest[0] not in ("-c", "-m", "-"):
        word = rest.pop(0)
        if word in _STANDARD:
            continue
        options.append(word)
        if word in _WITH_VALUE:
            options += rest[:1]
            del rest[:1]
    if rest[:1] == ["-m"] and len(rest) > 1:
        return _Started(options, rest[1], rest[2:])
    return _Started(options, None, rest)


def is_python(program: str) -> bool:
    """True for the name of an interpreter, which is the `launcher` of its line."""
    return bool(_PYTHON.fullmatch(program))


def _read_python(words: Sequence[str], machine: Machine) -> LaunchLine | None:
    """`python train.py` and `python -m package.module`: one process per GPU, as with a script
    alone. The only process of a job gets no variables of ranks, as in a shell.
    `python -m LAUNCHER ...` is the launcher's own line, and so is `python bin/torchrun ...`."""
    python = None if words[0] in _PLAIN else words[0]
    started = _started(words[1:])
    if not started.module and not started.rest:
        return None
    launched = _launcher_of(started, machine, python)
    if launched is not None:
        return launched
    if started.options:  # a job has no field for them: the whole line is a command
        runs = {"script": shlex.quote(words[0]), "args": list(words[1:])}
        python = None
    elif started.module:
        module = shlex.join([python or "python", "-m", started.module])
        runs = {"script": module, "args": started.rest}
    elif started.rest[0].endswith(".py"):
        runs = {"script": started.rest[0], "args": started.rest[1:]}
    else:
        runs = {"script": shlex.quote(words[0]), "args": list(words[1:])}
        python = None
    launcher = os.path.basename(words[0])
    given_by = {"env_variables": f"the {launcher} line"}
    defaults = {"env_variables": {RANK_VARIABLES: "0"}}
    return LaunchLine(launcher, runs, defaults, given_by, python=python)


def _launcher_of(started: _Started, machine: Machine, python: str | None) -> LaunchLine | None:
    """The line of the launcher that an interpreter starts; None: it starts no launcher. The ranks
    of launchers do not get the options of the interpreter."""
    module = started.module
    rest = started.rest
    if module is None:
        file = rest[0]
        module = next((name for end, name in _FILES.items() if file.endswith(end)), None)
        if os.path.basename(file) in _PROGRAMS:
            return _read_plain([os.path.basename(file), *rest[1:]], machine)
        rest = rest[1:]
    if module in _TORCH_MODULES:
        return torchrun.read(_TORCH_MODULES[module], rest, machine, python)
    if module in _ACCELERATE_MODULES:
        return accelerate.read(rest[1:] if rest[:1] == ["launch"] else rest, machine, python)
    if module is not None and module.split(".")[0] == "deepspeed":
        return deepspeed.read(rest, machine, python)
    return None


# --- lines that are not read: they run as they are


def _as_it_is(line: Unwrapped, machine: Machine, n_workers: int) -> LaunchLine | None:
    """The line as a command, with a warning if a launcher in it starts its own processes in each
    worker; None: the command is the line itself, and has no launcher. Raises InvalidRequest where
    these are certain to be separate trainings."""
    words = line.words
    if not words:
        return None
    runs = {"script": shlex.quote(words[0]), "args": list(words[1:])}
    text = shell_text(words)
    for start in commands_of(text) if text else chain(_ends_of(words), _in_script(words, machine)):
        name = _launcher_name(unwrap(start, machine).words)
        if name is None:
            continue
        runs_it = text is not None or line.unread  # a script may have branches
        if n_workers > 1 and runs_it and _stays_in_one_worker(start, machine):
            raise InvalidRequest(
                f"{name} would start a training of its own in each of the {n_workers} workers: "
                f"what stands before it can't be read ({shlex.join(words)})",
                hint=f"begin the line with {name}, and set variables by -e NAME=VALUE",
            )
        notice = (
            f"this line is not read: {name} itself runs in each worker, and its options, not those "
            "of the job, say how many processes train together"
        )
        shell = {"processes_per_worker": 1, "env_variables": {RANK_VARIABLES: "0"}}
        return _with_wrappers(LaunchLine("command", runs, shell, notices=[notice]), line)
    return _with_wrappers(LaunchLine("command", runs), line) if line.environment else None


def _ends_of(words: Sequence[str]) -> Iterator[Sequence[str]]:
    """The line from each word on that may be a program, up to the first file that it starts."""
    before = takewhile(lambda word: not word.endswith((".py", ".sh")), words[:_PROGRAM_WITHIN])
    for at, _ in enumerate(before):
        if at:
            yield words[at:]


def _in_script(words: Sequence[str], machine: Machine) -> Iterator[Sequence[str]]:
    """The commands of a script of a shell that the line runs, if it is on this machine."""
    file = script_of(unwrap(words, machine).words)
    if file is None or not machine.is_file(file):
        return
    try:
        text = machine.text(file) or ""
    except ClientLibError:  # the worker may be allowed to read it
        return
    for row in rows_of(text):
        yield from commands_of(row)


def _launcher_name(words: Sequence[str]) -> str | None:
    """The launcher with which a command begins, if it is one that jobs read."""
    if not words:
        return None
    program = os.path.basename(words[0])
    if program in _PROGRAMS and (program != "accelerate" or list(words[1:2]) == ["launch"]):
        return program
    if is_python(program):
        started = _started(words[1:])
        if started.module in _TORCH_MODULES or started.module in _ACCELERATE_MODULES:
            return f"{program} -m {started.module}"
    return None


def _stays_in_one_worker(words: Sequence[str], machine: Machine) -> bool:
    """True if it is certain that the launcher of this command knows of one machine only."""
    if any("$" in word or "`" in word for word in words):
        return False
    try:
        found = unwrap(words, machine)
        line = _read_plain(found.words, _within(machine, found))
    except ClientLibError:
        return False
    return line is not None and line.fields.get("n_workers", 1) == 1


def refuse_file(path: str, text: str, values: object, machine: Machine) -> None:
    """Raises NotSupported for a job file of another system: its kind, and the line to write.
    `values`: the file as YAML; None: it is none."""
    foreign.refuse_file(path, text, values, partial(read, machine=machine))
