"""What a launcher's command line means for a job, and what the readers of all launchers share."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from client_lib.errors import InvalidRequest


@dataclass(frozen=True)
class Caller:
    """What a line means by "here": the machine where it was typed."""

    cores: int | None = None
    """Of one worker, for `--nproc-per-node=cpu`; None: not known."""
    accelerate_config: Callable[[str | None], Mapping[str, Any]] = lambda _: {}
    """(path given on the line, or None for accelerate's default one) -> its values; {}: there is no default one."""
    is_file: Callable[[str], bool] = lambda _: False
    environment: Mapping[str, str] = field(default_factory=dict)
    """Of the shell: torchrun takes options from it that the line leaves out (PET_NNODES)."""


@dataclass(frozen=True)
class Reading:
    """A line, read. `fields`, `usual` and `said` are keyed by fields of the job spec."""

    launcher: str
    fields: Mapping[str, Any]
    """What the line says; a job option that says something else contradicts it."""
    usual: Mapping[str, Any] = field(default_factory=dict)
    """What the launcher does where the line says nothing; an option of the job wins over it."""
    said: Mapping[str, str] = field(default_factory=dict)
    """Field -> the words of the line that say it."""
    notices: Sequence[str] = ()
    """A sentence for each thing that is read otherwise than the launcher would."""
    python: str | None = None
    """The interpreter that the line names; None: the shell's."""


def what_runs(rest: Sequence[str], launcher: str, *, module: bool, no_python: bool, python: str) -> dict[str, Any]:
    """`script` and `args` of what stands behind the launcher's options.

    Raises InvalidRequest: nothing stands there, or both a module and no Python are asked for.
    """
    if module and no_python:
        raise InvalidRequest(f"{launcher}: --module and --no-python exclude each other", hint="keep one of them")
    if not rest:
        what = "module" if module else "script"
        raise InvalidRequest(f"the {launcher} line names no {what}", hint=f"{launcher} [OPTIONS] SCRIPT [ARGS]")
    script = shlex.join([python, "-m", rest[0]]) if module else shlex.quote(rest[0]) if no_python else rest[0]
    if not module and not no_python and not rest[0].endswith(".py"):
        script = shlex.join([python, rest[0]])  # a file of any name, as the launchers take it
    return {"script": script, "args": list(rest[1:])}


def whole_number(option: str, value: str, least: int) -> int:
    """Raises InvalidRequest for any other text."""
    try:
        number = int(value)
    except ValueError:
        number = least - 1
    if number < least:
        raise InvalidRequest(f"{option} {value!r} is not a whole number of at least {least}")
    return number


def dropped(given: Iterable[str], reasons: Mapping[str, str]) -> list[str]:
    """One sentence for all options that have no effect for the same reason."""
    of_reason: dict[str, list[str]] = {}
    for name in given:
        if name in reasons:
            of_reason.setdefault(reasons[name], []).append(f"--{name}")
    return [
        f"{', '.join(names)} {'has' if len(names) == 1 else 'have'} no effect here: {why}"
        for why, names in of_reason.items()
    ]
