"""Curves of metrics as text: the curves of one job, jobs ranked by a metric, and jobs beside each
other. Pure.

Plain dicts of the server's JSON and not JobMetrics, so that `client-lib metrics` loads no pydantic.
"""

import json
import math
import re
from collections.abc import Iterator, Sequence
from itertools import chain, count, pairwise
from typing import Any

from client_lib import visible_text
from client_lib.errors import NotFound
from client_lib.reports.table import Json, Row, number, progress, script
from client_lib.spec.command_line import split_script
from client_lib.spec.metric_names import grows

Measured = tuple[Json, Sequence[Json]]
"""A job with its curves."""

HEADINGS = ("METRIC", "RANK", "CURVE", "LAST", "AT", "BEST", "AT", "VALUES")
_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 32
_HUGE = 1e300


def rows(metrics: Json) -> list[Row]:
    """One row per curve, with the cells of HEADINGS."""
    found: list[Row] = []
    for curve in metrics["curves"]:
        at = best_at(curve, grows(curve["name"]))
        best = ("", "") if at is None else _value(curve, at)
        rank = "-" if curve["rank"] is None else str(curve["rank"])
        drawn = spark([float(value) for value in curve["values"]])
        found.append((curve["name"], rank, drawn, *_value(curve, -1), *best, str(curve["points"])))
    return found


def facts(metrics: Json) -> list[str]:
    """The lines below the table: the progress, and what is missing."""
    return [*filter(None, [progress(metrics)]), *missing(metrics)]


def missing(metrics: Json) -> list[str]:
    """The reasons why the curves are not complete."""
    lost = []
    thinned = [curve["name"] for curve in metrics["curves"] if curve["thinned"]]
    if thinned:
        lost.append(f"{', '.join(thinned)}: more values than are kept, some are left out")
    if not metrics.get("complete", True):
        lost.append("the log is long, and was not read to its end yet: ask again")
    if metrics.get("dropped"):
        lost.append(
            f"{metrics['dropped']} values of client_lib.log are missing: too many calls or names"
        )
    return lost


def csv_rows(metrics: Json) -> Iterator[Row]:
    """Heading and one row per value."""
    yield "metric", "rank", "step", "time", "value"
    for curve in metrics["curves"]:
        name = visible_text.one_line(curve["name"])
        rank = "" if curve["rank"] is None else str(curve["rank"])
        points = zip(curve["steps"], curve["times"], curve["values"], strict=True)
        for step, time, value in points:
            yield name, rank, f"{float(step):.15g}", f"{time:.6f}", repr(float(value))


# --- jobs ranked by a metric

RANKING = ("NAME", "STATE", "BEST", "AT", "LAST", "SCRIPT")


def ranked(jobs: Sequence[Measured], by: str, largest: bool | None = None) -> list[Json]:
    """The jobs by the best value of a metric, the best first; jobs without the metric stand at the
    end. `largest`: True if the largest value is the best; None: as the metric's name tells, else
    the smallest. Raises NotFound: no job has this metric."""
    is_larger = bool(grows(by) if largest is None else largest)
    known = {curve["name"] for _, curves in jobs for curve in curves}
    if by not in known:
        names = ", ".join(sorted(known)) or "none"
        raise NotFound(f"no job of these has the metric {by!r}; they have {names}")

    found = []
    for job, curves in jobs:
        of_job = {"name": job["name"], "state": job["state"], "script": script(job["spec"])}
        curve = next((curve for curve in curves if curve["name"] == by), None)
        at = best_at(curve, is_larger) if curve else None
        if curve and at is not None:
            of_job["best"] = float(curve["values"][at])
            of_job["axis"] = curve["axis"]
            of_job["step"] = curve["steps"][at]
            of_job["last"] = curve["values"][-1]
        found.append(of_job)

    def order(job: Json) -> float:
        if "best" not in job:
            return math.inf
        best: float = job["best"]
        return -best if is_larger else best

    return sorted(found, key=order)


def ranking(jobs: Sequence[Json]) -> list[Row]:
    """The cells of RANKING for jobs from `ranked`."""
    found: list[Row] = []
    for job in jobs:
        known: Row = ("-", "-", "-")
        if "best" in job:
            known = (number(job["best"]), _place(job["axis"], job["step"]), number(job["last"]))
        found.append((job["name"], job["state"], *known, job["script"]))
    return found


def best_at(curve: Json, is_larger: bool | None) -> int | None:
    """Index of the best value; None: `is_larger` is None, or all values are NaN or infinite."""
    if is_larger is None:
        return None
    values = [float(value) for value in curve["values"]]
    finite = [at for at, value in enumerate(values) if math.isfinite(value)]
    best = max if is_larger else min
    return best(finite, key=values.__getitem__, default=None)


def _value(curve: Json, index: int) -> tuple[str, str]:
    """A value and its place, as cells."""
    return number(curve["values"][index]), _place(curve["axis"], curve["steps"][index])


def _place(axis: str, step: float) -> str:
    counted = "value" if axis == "count" else axis
    return f"{counted} {float(step):.10g}"


def spark(values: Sequence[float]) -> str:
    """The means of up to 32 parts as bars between the lowest and the highest; `!`: a
    part has NaN or infinity.
    """
    count = min(_WIDTH, len(values))
    ends = [part * len(values) // count for part in range(1, count + 1)]
    parts = [values[begin:end] for begin, end in pairwise([0, *ends])]
    means = [sum(part) / len(part) for part in parts]
    shown = [mean for mean in means if abs(mean) < _HUGE]
    low = min(shown, default=0.0)
    span = max(shown, default=0.0) - low

    def bar(mean: float) -> str:
        if not abs(mean) < _HUGE:  # NaN is not, either
            return "!"
        if span <= 0:
            return _BARS[0]
        return _BARS[int((mean - low) / span * 7.999)]

    return "".join(map(bar, means))


# --- jobs beside each other

_BY_PARTS = ("name", "script", "args", "flags", "env_variables")
_OPTION = re.compile(r"--?([A-Za-z][\w.-]*)(?:=(.*))?", re.DOTALL)
# of Hydra; an argument of a function
_PAIR = re.compile(r"[+~]{0,2}([A-Za-z_][\w.-]*)=(.*)", re.DOTALL)


def compared(jobs: Sequence[Measured]) -> list[Json]:
    """`name`, `state`, `arguments` (if they differ) and `metrics` of the jobs. Among the arguments
    are values that a group tries, variables as `$NAME`, and fields of the job. A metric has its
    `last` value, and its `best` value if the metric's name tells which value is best."""
    known = [_known(job) for job, _ in jobs]
    names = dict.fromkeys(chain(*known))
    differ = [name for name in names if len({each.get(name) for each in known}) > 1]
    found: list[Json] = []
    for (job, curves), values in zip(jobs, known, strict=True):
        metrics: dict[str, Json] = {}
        # rank 0 wins over no rank
        for curve in sorted(curves, key=lambda curve: curve["rank"] is not None):
            metrics[curve["name"]] = _last_and_best(curve)
        found.append(
            {
                "name": job["name"],
                "state": job["state"],
                "arguments": {name: values[name] for name in differ if name in values},
                "metrics": metrics,
            }
        )
    return found


def _last_and_best(curve: Json) -> Json:
    values = curve["values"]
    at = best_at(curve, grows(curve["name"]))
    if at is None:
        return {"last": values[-1]}
    return {"last": values[-1], "best": values[at]}


def compared_rows(found: Sequence[Json], *, exact: bool = False) -> list[Row]:
    """The headings, and a row for each job of `compared`. `exact`: with all digits."""
    arguments = list(dict.fromkeys(name for job in found for name in job["arguments"]))
    # name and kind, such as ("loss", "best")
    metrics: dict[tuple[str, str], None] = {}
    for job in found:
        for name, values in job["metrics"].items():
            metrics.update(((name, kind), None) for kind in values)

    def shown(value: float | str | None) -> str:
        if value is None:
            return ""
        return repr(float(value)) if exact else number(value)

    titles = [name if kind == "last" else f"{kind} {name}" for name, kind in metrics]
    cells = [["NAME", "STATE", *arguments, *titles]]
    for job in found:
        given = [job["arguments"].get(name, "") for name in arguments]
        values = [job["metrics"].get(name, {}).get(kind) for name, kind in metrics]
        cells.append([job["name"], job["state"], *given, *map(shown, values)])
    return [[visible_text.one_line(cell) for cell in row] for row in cells]


def _known(job: Json) -> dict[str, str]:
    """All values of a job by name, except values that are None."""
    spec = job["spec"]
    group = job.get("group") or {}
    variables = spec.get("env_variables") or {}
    named = {
        **_arguments(spec),
        **(group.get("values") or {}),
        **{f"${name}": value for name, value in variables.items()},
    }
    fields = {name: spec[name] for name in spec if name not in {*named, *_BY_PARTS}}
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in (named | fields).items()
        if value is not None
    }


def _arguments(spec: Json) -> dict[str, Any]:
    """`--lr 0.1`, `--lr=0.1` and `lr=0.1` by the name, an option without a value as
    true, all else by its place.
    """
    script = spec["script"]
    # of a function: its name
    first, *words = [script] if script.endswith("()") else split_script(script)
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
    for name, value in (spec.get("flags") or {}).items():
        found[name] = True if value is None else value
    return found
