"""Command lines that people know, read: `torchrun ...`, `accelerate launch ...`, `python ...` as fields of a job.

Pure: words in, a `Reading` out; nothing is started, and no file is looked at but through the
`Caller`. Only the command line uses it. Each launcher has a module of its own; what an option of it means here stands
in that module's tables, and tests compare those with the launcher's own parser.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from client_lib.errors import NotSupported
from client_lib.launch_lines import accelerate, python, torchrun
from client_lib.launch_lines.reading import Caller, Reading

__all__ = ["Caller", "Reading", "read"]

_TORCH_MODULES = {"torch.distributed.run": "torchrun", "torch.distributed.launch": "torch.distributed.launch"}
_ACCELERATE_MODULES = ("accelerate.commands.launch", "accelerate.commands.accelerate_cli")
_PYTHON = re.compile(r"python[\d.]*")


def read(words: Sequence[str], caller: Caller) -> Reading | None:
    """What the line means, or None: its first word is no launcher that is read here, so it is a script or a command.

    Raises:
        InvalidRequest: an option that the launcher does not know, a value that it would not take.
        NotSupported: something of the launcher that can't be had here, by name, with the way out.
    """
    folder, program = os.path.split(words[0])
    beside = os.path.join(folder, "python")
    python_named = beside if folder and caller.is_file(beside) else None
    if program == "torchrun":
        return torchrun.read(program, words[1:], caller, python_named)
    if program == "accelerate" and words[1:2] == ["launch"]:
        return accelerate.read(words[2:], caller, python_named)
    if program == "accelerate-launch":
        return accelerate.read(words[1:], caller, python_named)
    if program == "deepspeed":
        raise _no_deepspeed()
    return _read_python(words, caller) if _PYTHON.fullmatch(program) else None


def _read_python(words: Sequence[str], caller: Caller) -> Reading | None:
    """`python -m LAUNCHER ...` is the launcher's own line."""
    line = python.split(words)
    if line is None:
        return None
    if line.module in _TORCH_MODULES:
        return torchrun.read(_TORCH_MODULES[line.module], line.rest, caller, line.interpreter)
    if line.module in _ACCELERATE_MODULES:
        rest = line.rest[1:] if line.rest[:1] == ["launch"] else line.rest
        return accelerate.read(rest, caller, line.interpreter)
    if line.module and line.module.split(".")[0] == "deepspeed":
        raise _no_deepspeed()
    return python.read(line)


def _no_deepspeed() -> NotSupported:
    return NotSupported(
        "the deepspeed launcher reaches its machines by ssh from a hostfile; the workers of a job have neither",
        hint="write `client-lib submit -N MACHINES --processes-per-worker GPUS train.py --deepspeed ...`: "
        "deepspeed.init_distributed() finds RANK, WORLD_SIZE and MASTER_ADDR in the environment",
    )
