"""Curves of metrics as text: the curves of one job, jobs ranked by a metric, and jobs beside each
other. Pure.

Plain dicts of the server's JSON and not JobMetrics, so that `client-lib metrics` loads no pydantic.
"""

import json
import math
import re
from collections.abc import Iterator, Sequence
from itertools import chain, count
from typing import Any

from client_lib.errors import NotFound
from client_lib.reports.table import Json, Row, harmless, number, progress, script
from client_lib.spec.command_line import split_script

Measured = tuple[Json, Sequence[Json]]  # a job with its curves

HEADINGS = ("METRIC", "RANK", "CURVE", "LAST", "AT", "BEST", "AT", "VALUES")
_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 32
_HUGE = 1e300
_FALLS = ("loss", "perplexity", "ppl", "error", "wer", "cer", "mse", "mae", "rmse", "nll")
_GROWS = (
    "acc",
    "f1",
    "auc",
    "bleu",
    "rouge",
    "reward",
    "iou",
    "dice",
    "recall",
    "precision",
    "psnr",
    "ssim",
    "elbo",
)


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
    thinned = [curve["name"] for curve in metrics["curves"] if curve["thinned"]]
    lost = (
        [f"{', '.join(thinned)}: more values than are kept, some are left out"] if thinned else []
    )
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
        rank = "" if curve["rank"] is None else str(curve["rank"])
        for step, time, value in zip(curve["steps"], curve["times"], curve["values"], strict=True):
            yield (
                harmless(curve["name"]),
                rank,
                f"{float(step):.15g}",
                f"{time:.6f}",
                repr(float(value)),
            )


# --- jobs ranked by a metric

RANKING = ("NAME", "STATE", "BEST", "AT", "LAST", "SCRIPT")


def ranked(jobs: Sequence[Measured], by: str, largest: bool | None = None) -> list[Json]:
    """The jobs by the best value of a metric, the best first; jobs without the metric stand at the
    end. `largest`: True if the largest value is the best; None: as the metric's name tells, else
    the smallest. Raises NotFound: no job has this metric."""
    is_larger = bool(grows(by) if largest is None else largest)
    if not any(curve["name"] == by for _, curves in jobs for curve in curves):
        known = sorted({curve["name"] for _, curves in jobs for curve in curves})
        raise NotFound(
            f"no job of these has the metric {by!r}; they have {', '.join(known) or 'none'}"
        )
    found = []
    for job, curves in jobs:
        curve = next((curve for curve in curves if curve["name"] == by), None)
        at = best_at(curve, is_larger) if curve else None
        of_job = {"name": job["name"], "state": job["state"], "script": script(job["spec"])}
        if curve and at is not None:
            best = curve["values"][at]
            step = curve["steps"][at]
            last = curve["values"][-1]
            of_job |= {"best": float(best), "axis": curve["axis"], "step": step, "last": last}
        found.append(of_job)
    sign = -1 if is_larger else 1
    return sorted(found, key=lambda job: sign * job["best"] if "best" in job else math.inf)


def ranking(jobs: Sequence[Json]) -> list[Row]:
    """The cells of RANKING for jobs from `ranked`."""
    found: list[Row] = []
    for job in jobs:
        known: Row = ("-", "-", "-")
        if "best" in job:
            known = (number(job["best"]), _place(job["axis"], job["step"]), number(job["last"]))
        found.append((job["name"], job["state"], *known, job["script"]))
    return found


def grows(name: str) -> bool | None:
    """True if the largest value of a metric of this name is the best;
    None: the name does not tell.
    """
    if any(word in name.lower() for word in _GROWS):
        return True
    return False if any(word in name.lower() for word in _FALLS) else None


def best_at(curve: Json, is_larger: bool | None) -> int | None:
    """Index of the best value; None: `is_larger` is None, or all values are NaN or infinite."""
    if is_larger is None:
        return None
    values = [float(value) for value in curve["values"]]
    finite = [at for at, value in enumerate(values) if math.isfinite(value)]
    return (max if is_larger else min)(finite, key=values.__getitem__, default=None)


def _value(curve: Json, index: int) -> tuple[str, str]:
    return number(curve["values"][index]), _place(curve["axis"], curve["steps"][index])


def _place(axis: str, step: float) -> str:
    return f"{'value' if axis == 'count' else axis} {float(step):.10g}"


def spark(values: Sequence[float]) -> str:
    """The means of up to 32 parts as bars between the lowest and the highest; `!`: a
    part has NaN or infinity.
    """
    count = min(_WIDTH, len(values))
    parts = [
        values[i * len(values) // count : (i + 1) * len(values) // count] for i in range(count)
    ]
    means = [sum(part) / len(part) for part in parts]
    shown = [mean for mean in means if abs(mean) < _HUGE]
    low = min(shown, default=0.0)
    span = max(shown, default=0.0) - min(shown, default=0.0)
    return "".join(
        _BARS[int((mean - low) / span * 7.999) if span > 0 else 0] if abs(mean) < _HUGE else "!"
        for mean in means
    )


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
    differ = [
        name for name in dict.fromkeys(chain(*known)) if len({each.get(name) for each in known}) > 1
    ]
    found: list[Json] = []
    for (job, curves), each in zip(jobs, known, strict=True):
        metrics: dict[str, Any] = {}
        # rank 0 wins over no rank
        for curve in sorted(curves, key=lambda curve: curve["rank"] is not None):
            at = best_at(curve, grows(curve["name"]))
            values = curve["values"]
            metrics[curve["name"]] = {
                "last": values[-1],
                **({} if at is None else {"best": values[at]}),
            }
        arguments = {name: each[name] for name in differ if name in each}
        found.append(
            {"name": job["name"], "state": job["state"], "arguments": arguments, "metrics": metrics}
        )
    return found


def compared_rows(found: Sequence[Json], *, exact: bool = False) -> list[Row]:
    """The headings, and a row for each job of `compared`. `exact`: with all digits."""
    arguments = list(dict.fromkeys(name for job in found for name in job["arguments"]))
    metrics = dict.fromkeys(
        (name, kind) for job in found for name, values in job["metrics"].items() for kind in values
    )
    show = (lambda value: repr(float(value))) if exact else number
    headings = [
        "NAME",
        "STATE",
        *arguments,
        *(name if kind == "last" else f"{kind} {name}" for name, kind in metrics),
    ]
    cells = [headings]
    for job in found:
        values = [job["metrics"].get(name, {}).get(kind) for name, kind in metrics]
        shown = ["" if value is None else show(value) for value in values]
        cells.append(
            [
                job["name"],
                job["state"],
                *(job["arguments"].get(name, "") for name in arguments),
                *shown,
            ]
        )
    return [[harmless(cell) for cell in row] for row in cells]


def _known(job: Json) -> dict[str, str]:
    """All values of a job by name, except values that are None."""
    spec = job["spec"]
    named = {
        **_arguments(spec),
        **((job.get("group") or {}).get("values") or {}),
        **{f"${name}": value for name, value in (spec.get("env_variables") or {}).items()},
    }
    named = {**named, **{name: spec[name] for name in spec if name not in {*named, *_BY_PARTS}}}
    return {
        name: v if isinstance(v, str) else json.dumps(v)
        for name, v in named.items()
        if v is not None
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
    return {
        **found,
        **{
            name: True if value is None else value
            for name, value in (spec.get("flags") or {}).items()
        },
    }
