"""The runs of a group: values for names, and each run's own arguments. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import product
from math import prod
from typing import Any

from client_lib.errors import InvalidRequest
from client_lib.spec.groups import MEMBERS_MAX, GroupMember

_NAME = re.compile(r"[A-Za-z_][\w-]*")
_PLACE = re.compile(r"\{(\{[A-Za-z_][\w-]*\})\}|\{([A-Za-z_][\w-]*)\}")
_RANGE = re.compile(r"(-?\d{1,15})\.\.(-?\d{1,15})")


def values(text: str) -> list[Any]:
    """`0.1,0.01` -> both as text; `0..4` -> 0 to 4, both ends included. Raises InvalidRequest."""
    found: list[Any] = []
    for part in text.split(","):
        ends = _RANGE.fullmatch(part)
        numbers: Sequence[Any] = range(int(ends[1]), int(ends[2]) + 1) if ends else [part]
        if not numbers or part == "":
            raise InvalidRequest(f"{part!r} in {text!r} is no value", hint="write values as 0.1,0.01 or 0..4")
        if len(found) + len(numbers) > MEMBERS_MAX:
            raise InvalidRequest(f"{text!r} has more than {MEMBERS_MAX} values, which is the most that a group has")
        found += numbers
    return found


def members(args: Sequence[str], each: Mapping[str, Sequence[Any]]) -> list[GroupMember]:
    """A run for each combination; the last name varies first. `{name}` in `args` becomes the value, a name that stands
    nowhere is appended as `--name value`; `{{name}}` becomes `{name}`.

    Raises InvalidRequest: no or too many runs, a wrong name, a place without values.
    """
    for name, tried in each.items():
        if not _NAME.fullmatch(name):
            raise InvalidRequest(f"{name!r} can't be the name of an argument", hint="letters, digits, '_' and '-'")
        if not tried:
            raise InvalidRequest(f"{name} has no values, so there is nothing to run")
    count = prod(map(len, each.values())) if each else 0
    if not 1 <= count <= MEMBERS_MAX:
        raise InvalidRequest(f"these values make {count} runs; a group has 1 to {MEMBERS_MAX}")
    places = {found[2] for arg in args for found in _PLACE.finditer(arg) if found[2]}
    if unknown := sorted(places - each.keys()):
        raise InvalidRequest(
            f"{{{unknown[0]}}} in the arguments has no values; there are: {', '.join(each)}",
            hint=f"give them, or write {{{{{unknown[0]}}}}} for the text {{{unknown[0]}}} itself",
        )
    runs = [dict(zip(each, tried, strict=True)) for tried in product(*each.values())]
    return [GroupMember(args=_filled(args, run, places), values=run) for run in runs]


def _filled(args: Sequence[str], run: Mapping[str, Any], places: set[str]) -> list[str]:
    filled = [_PLACE.sub(lambda found: found[1] or str(run[found[2]]), arg) for arg in args]
    return [*filled, *(word for name, value in run.items() if name not in places for word in (f"--{name}", str(value)))]
