"""Names of jobs as users type them: shortened, misspelt, several at once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import typer

from client_lib.cli import exits, printer
from client_lib.errors import ClientLibError, NotFound

NamesFrom = Callable[[str, int], list[str]]
"""(prefix, limit) -> names of jobs that begin with it, newest first."""

SHOWN = 5  # names in a message
NEAREST_AMONG = 200  # newest jobs that a misspelt name is compared with


def complete(name: str, names_from: NamesFrom) -> str:
    """The one job whose name begins with `name`, which is itself no job's name.

    Raises NotFound: no job or several begin with it; names the nearest.
    """
    found = names_from(name, SHOWN + 1) if name else []
    if len(found) == 1:
        return found[0]
    if found:
        raise NotFound(f"no job named {name}; {_several(found)} begin so", hint="write more of the name")
    raise unknown(name, names_from("", NEAREST_AMONG))


def _several(found: Sequence[str]) -> str:
    return ", ".join(found[:SHOWN]) + (" and more" if len(found) > SHOWN else "")


def unknown(name: str, names: Sequence[str]) -> NotFound:
    """The error for a name that no job has, with the nearest of `names`."""
    from difflib import get_close_matches

    near = get_close_matches(name, names, n=3, cutoff=0.5)
    offer = f"; did you mean {' or '.join(near)}?" if near else ""
    return NotFound(f"no job named {name}{offer}", hint="`client-lib list` shows the jobs you have")


def change_each(names: Sequence[str], change: Callable[[str], None], names_from: NamesFrom) -> int:
    """Call `change` for each job, also after an error of another; return the exit code of the first error."""
    codes = []
    for name in names:
        try:
            _change_one(name, change, names_from)
        except ClientLibError as problem:
            printer.error(problem)
            codes.append(exits.of_error(problem))
    return next(iter(codes), exits.DONE)


def _change_one(name: str, change: Callable[[str], None], names_from: NamesFrom) -> None:
    """A shortened name has to be confirmed: the job meant may have gone, and another one may begin with its name."""
    try:
        change(name)
    except NotFound:
        full = complete(name, names_from)
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise NotFound(f"no job named {name}", hint=f"did you mean {full}? write the whole name") from None
        if typer.confirm(f"no job named {name}; did you mean {full}?", err=True):
            change(full)
