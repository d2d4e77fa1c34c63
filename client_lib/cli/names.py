"""What a user means by a name that no job has: the one job whose name begins so, or an error that names the nearest.

Where jobs are changed, `changes` asks first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from client_lib.errors import NotFound

NamesFrom = Callable[[str, int], list[str]]
"""(prefix, limit) -> names of jobs that begin so, newest first."""

SHOWN = 5  # names in a message
NEAREST_AMONG = 200  # newest jobs that a misspelt name is compared with


def complete(name: str, names_from: NamesFrom) -> str:
    """The one job whose name begins with `name`, which is itself no job's name.

    Raises NotFound: no job or several begin so; names the nearest.
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
