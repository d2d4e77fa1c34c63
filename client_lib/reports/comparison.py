"""Jobs beside each other: the arguments in which they differ, the last and the best values of their metrics. Pure.

Plain dicts of the server's JSON, as in `curves`. `difference` compares all that two jobs ran.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import chain, count
from typing import Any

from client_lib.reports import curves
from client_lib.reports.table import Json, Row, harmless, number
from client_lib.spec.command_line import split_script

_BY_PARTS = ("name", "script", "args", "flags", "env_variables")
_OPTION = re.compile(r"--?([A-Za-z][\w.-]*)(?:=(.*))?", re.DOTALL)
_PAIR = re.compile(r"[+~]{0,2}([A-Za-z_][\w.-]*)=(.*)", re.DOTALL)  # of Hydra; an argument of a function


def compared(jobs: Sequence[tuple[Json, Sequence[Json]]]) -> list[Json]:
    """`name`, `state`, `arguments` (those that differ) and `metrics` of the jobs, which come with their curves.

    Among the arguments are values that a group tries, variables as `$NAME`, and fields of the job. A metric has its
    `last` value, and its `best` one where its name tells which that is.
    """
    known = [_known(job) for job, _ in jobs]
    differ = [name for name in dict.fromkeys(chain(*known)) if len({each.get(name) for each in known}) > 1]
    return [
        {
            "name": job["name"],
            "state": job["state"],
            "arguments": {name: each[name] for name in differ if name in each},
            # a curve of rank 0 wins over that of no rank
            "metrics": {curve["name"]: _values(curve) for curve in sorted(found, key=lambda c: c["rank"] is not None)},
        }
        for (job, found), each in zip(jobs, known, strict=True)
    ]


def rows(found: Sequence[Json], *, exact: bool = False) -> list[Row]:
    """The headings, and a row for each job of `compared`. `exact`: with all digits."""
    arguments = list(dict.fromkeys(name for job in found for name in job["arguments"]))
    metrics = dict.fromkeys((name, kind) for job in found for name, values in job["metrics"].items() for kind in values)
    show = (lambda value: repr(float(value))) if exact else number
    headings = ["NAME", "STATE", *arguments, *(name if kind == "last" else f"{kind} {name}" for name, kind in metrics)]
    cells = [
        [
            *(job[key] for key in ("name", "state")),
            *(job["arguments"].get(name, "") for name in arguments),
            *(
                show(job["metrics"][name][kind]) if kind in job["metrics"].get(name, ()) else ""
                for name, kind in metrics
            ),
        ]
        for job in found
    ]
    return [[harmless(cell) for cell in row] for row in (headings, *cells)]


def _values(curve: Json) -> dict[str, Any]:
    grows = curves.grows(curve["name"])
    best = None if grows is None else curves.best_at(curve, grows)
    return {"last": curve["values"][-1], **({} if best is None else {"best": curve["values"][best]})}


def _known(job: Json) -> dict[str, str]:
    """All values of a job by their names, without those that are None; a field that the server does not send has its
    default."""
    spec = job["spec"]
    named = {
        **_arguments(spec),
        **((job.get("group") or {}).get("values") or {}),
        **{f"${name}": value for name, value in (spec.get("env_variables") or {}).items()},
    }
    named = {**named, **{name: spec[name] for name in spec if name not in {*named, *_BY_PARTS}}}
    given = {name: value for name, value in named.items() if value is not None}
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in given.items()}


def _arguments(spec: Json) -> dict[str, Any]:
    """`--lr 0.1`, `--lr=0.1` and `lr=0.1` by the name, an option without a value as true, all else by its place."""
    script = spec["script"]
    first, *words = [script] if script.endswith("()") else split_script(script)  # of a function: its name
    found: dict[str, Any] = {"script": first}
    words += spec.get("args") or []
    places = count(1)
    while words:
        word, *words = words
        named = _OPTION.fullmatch(word) or _PAIR.fullmatch(word)
        if named and named[2] is None and words and not _OPTION.fullmatch(words[0]):
            found[named[1]], *words = words
        elif named:
            found[named[1]] = True if named[2] is None else named[2]
        else:
            found[f"argument {next(places)}"] = word
    return {**found, **{name: True if value is None else value for name, value in (spec.get("flags") or {}).items()}}
