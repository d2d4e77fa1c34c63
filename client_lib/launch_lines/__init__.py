"""Readers of well-known command lines: `torchrun ...`, `accelerate launch ...`, `python ...` become fields of a job.

Pure: words in, a `LaunchLine` out; files are read only through the `Machine`. Each launcher has a module, whose tables
hold the meaning of its options; tests compare the tables with the launcher's own parser.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from client_lib.launch_lines import accelerate, refused, torchrun
from client_lib.launch_lines.lines import LaunchLine, Machine, read_python, split_python

__all__ = ["LaunchLine", "Machine", "read"]

_TORCH_MODULES = {"torch.distributed.run": "torchrun", "torch.distributed.launch": "torch.distributed.launch"}
_ACCELERATE_MODULES = ("accelerate.commands.launch", "accelerate.commands.accelerate_cli")
_PYTHON = re.compile(r"python[\d.]*")


def read(words: Sequence[str], machine: Machine) -> LaunchLine | None:
    """The fields that the line means; None: its first word is no launcher that is read here, but a script or a command.

    Raises:
        InvalidRequest: an option that the launcher does not know, or a value that it would not take.
        NotSupported: a feature of the launcher that does not exist here, by name, with the way out.
    """
    folder, program = os.path.split(words[0])
    beside = os.path.join(folder, "python")
    python_named = beside if folder and machine.is_file(beside) else None
    if program == "torchrun":
        return torchrun.read(program, words[1:], machine, python_named)
    if program == "accelerate" and words[1:2] == ["launch"]:
        return accelerate.read(words[2:], machine, python_named)
    if program == "accelerate-launch":
        return accelerate.read(words[1:], machine, python_named)
    refused.check([program, *words[1:]])
    return _read_python(words, machine) if _PYTHON.fullmatch(program) else None


def _read_python(words: Sequence[str], machine: Machine) -> LaunchLine | None:
    """`python -m LAUNCHER ...` is the launcher's own line."""
    line = split_python(words)
    if line is None:
        return read_python(words, None) if {*words[1:]} - {"-u"} else None
    if line.module in _TORCH_MODULES:
        return torchrun.read(_TORCH_MODULES[line.module], line.rest, machine, line.interpreter)
    if line.module in _ACCELERATE_MODULES:
        rest = line.rest[1:] if line.rest[:1] == ["launch"] else line.rest
        return accelerate.read(rest, machine, line.interpreter)
    if line.module and line.module.split(".")[0] == "deepspeed":
        refused.check(["deepspeed", *line.rest])
    return read_python(words, line)
