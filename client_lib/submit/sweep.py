"""The runs of a group: values for names, and each run's own arguments. Pure."""

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from itertools import product
from math import prod
from typing import Any

from client_lib.errors import InvalidRequest
from client_lib.spec.request import MEMBERS_MAX, GroupMember

Each = Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]]
"""Values for each name, which are combined, or the values of each run."""
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
            raise InvalidRequest(
                f"{part!r} in {text!r} is no value", hint="write values as 0.1,0.01 or 0..4"
            )
        if len(found) + len(numbers) > MEMBERS_MAX:
            raise InvalidRequest(
                f"{text!r} has more than {MEMBERS_MAX} values, which is the most that a group has"
            )
        found += numbers
    return found


def rows(text: str, name: str) -> list[dict[str, Any]]:
    """The runs in a file of this name: CSV whose first line names the arguments, or `*.jsonl` with
    an object per line. Raises InvalidRequest with the line that is wrong."""
    if name.endswith(".jsonl"):
        found = []
        for number, line in enumerate(text.split("\n"), 1):
            if not line.strip():
                continue
            try:
                found.append(json.loads(line))
            except ValueError as error:
                raise InvalidRequest(f"{name}, line {number} is no JSON: {error}") from error
            if not isinstance(found[-1], dict):
                raise InvalidRequest(f'{name}, line {number} is no object such as {{"lr": 0.1}}')
        return found
    reader = csv.reader(io.StringIO(text.rstrip(), newline=""), skipinitialspace=True, strict=True)
    try:
        header, *lines = [(reader.line_num, row) for row in reader] or [(1, [])]
    except csv.Error as error:
        raise InvalidRequest(f"{name}, line {reader.line_num}: {error}") from error
    names = ", ".join(header[1])
    if len(set(header[1])) < len(header[1]):
        raise InvalidRequest(f"two columns of {name} have the same name: {names}")
    for number, row in lines:
        if len(row) != len(header[1]) or "" in row:
            got = sum(value != "" for value in row)
            raise InvalidRequest(
                f"{name}, line {number} has {got} values; it needs one for each of: {names}"
            )
    return [dict(zip(header[1], row, strict=True)) for _, row in lines]


def members(args: Sequence[str], each: Each) -> list[GroupMember]:
    """Make a run for each combination of the values, in which the last name varies first; or for
    each of the given combinations. `{name}` in `args` becomes the value, a name that stands nowhere
    is appended as `--name value`; `{{name}}` becomes `{name}`. Raises InvalidRequest: no, too many,
    equal or unequal runs, a wrong name, a place without values."""
    if isinstance(each, Mapping):
        if texts := [name for name, tried in each.items() if isinstance(tried, str)]:
            raise InvalidRequest(
                f"{texts[0]}={each[texts[0]]!r} is one text", hint="give a list of values"
            )
        if unused := [name for name, tried in each.items() if not tried]:
            raise InvalidRequest(f"{unused[0]} has no values, so there is nothing to run")
        count = prod(map(len, each.values())) if each else 0
    else:
        count = len(each)
    if not 1 <= count <= MEMBERS_MAX:  # before the runs are made
        raise InvalidRequest(f"these values make {count} runs; a group has 1 to {MEMBERS_MAX}")
    runs: list[Mapping[str, Any]]
    if isinstance(each, Mapping):
        runs = [dict(zip(each, tried, strict=True)) for tried in product(*each.values())]
    else:
        runs = list(each)
        for number, run in enumerate(runs, 1):
            if run.keys() != runs[0].keys():
                shown = [", ".join(map(str, one)) or "nothing" for one in (run, runs[0])]
                raise InvalidRequest(
                    f"run {number} has values for {shown[0]}, and run 1 for {shown[1]}"
                )
            if (first := runs.index(run) + 1) < number:
                raise InvalidRequest(
                    f"run {number} repeats run {first}: {run}", hint="give each its own seed"
                )
    names = list(runs[0])
    for name in names:
        if not (isinstance(name, str) and _NAME.fullmatch(name)):
            raise InvalidRequest(
                f"{name!r} can't be the name of an argument", hint="letters, digits, '_' and '-'"
            )
    places = {found[2] for arg in args for found in _PLACE.finditer(arg) if found[2]}
    if unknown := sorted(places - set(names)):
        raise InvalidRequest(
            f"{{{unknown[0]}}} in the arguments has no values; there are: {', '.join(names)}",
            hint=f"give them, or write {{{{{unknown[0]}}}}} for the text {{{unknown[0]}}} itself",
        )
    return [GroupMember(args=_filled(args, run, places), values=run) for run in runs]


def _filled(args: Sequence[str], run: Mapping[str, object], places: set[str]) -> list[str]:
    filled = [_PLACE.sub(lambda found: found[1] or str(run[found[2]]), arg) for arg in args]
    return [
        *filled,
        *(
            word
            for name, value in run.items()
            if name not in places
            for word in (f"--{name}", str(value))
        ),
    ]
