"""`python train.py` and `python -m package.module` as fields of a job. Pure."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from client_lib.launch_lines.reading import Reading

_NEEDLESS = frozenset({"-u"})  # ranks are started with PYTHONUNBUFFERED=1
_PLAIN = ("python", "python3")  # the shell's own, whatever its folder; any other is named on purpose


@dataclass(frozen=True)
class PythonLine:
    interpreter: str | None
    """As it is written, where it is not simply `python`."""
    module: str | None
    rest: Sequence[str]
    """Behind `-m MODULE`; else the script and its arguments."""


def split(words: Sequence[str]) -> PythonLine | None:
    """None: options of the interpreter that no field can say, or no script; then it is a command like any other."""
    named = None if words[0] in _PLAIN else words[0]
    rest = list(words[1:])
    while rest and rest[0] in _NEEDLESS:
        del rest[0]
    if len(rest) > 1 and rest[0] == "-m":
        return PythonLine(named, rest[1], rest[2:])
    if rest and not rest[0].startswith("-") and rest[0].endswith(".py"):
        return PythonLine(named, None, rest)
    return None


def read(line: PythonLine) -> Reading:
    """One process of it per GPU, as with a script alone."""
    if line.module is None:
        fields = {"script": line.rest[0], "args": list(line.rest[1:])}
    else:
        command = [line.interpreter or "python", "-m", line.module]
        fields = {"script": shlex.join(command), "args": list(line.rest)}
    return Reading(os.path.basename(line.interpreter or "python"), fields, python=line.interpreter)
