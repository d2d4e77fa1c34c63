"""Curves of metrics as text. Pure.

Plain dicts of the server's JSON and not JobMetrics, so that `client-lib metrics` loads no pydantic.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from client_lib.errors import NotFound
from client_lib.reports.table import Json, Row, harmless, number, progress, script

HEADINGS = ("METRIC", "RANK", "CURVE", "LAST", "AT", "BEST", "AT", "VALUES")
_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 32
_HUGE = 1e300
_FALLS = ("loss", "perplexity", "ppl", "error", "wer", "cer", "mse", "mae", "rmse", "nll")
_GROWS = ("acc", "f1", "auc", "bleu", "rouge", "reward", "iou", "dice", "recall", "precision", "psnr", "ssim", "elbo")


def rows(metrics: Json) -> list[Row]:
    """One row per curve, with the cells of HEADINGS."""
    return [_row(curve) for curve in metrics["curves"]]


def facts(metrics: Json) -> list[str]:
    """The lines below the table: the progress, and what is missing."""
    return [*filter(None, [progress(metrics)]), *missing(metrics)]


def missing(metrics: Json) -> list[str]:
    """The reasons why the curves are not complete."""
    thinned = [curve["name"] for curve in metrics["curves"] if curve["thinned"]]
    lost = [f"{', '.join(thinned)}: more values than are kept, some are left out"] if thinned else []
    if not metrics.get("complete", True):
        lost.append("the log is long, and was not read to its end yet: ask again")
    if metrics.get("dropped"):
        lost.append(f"{metrics['dropped']} values of client_lib.log are missing: too many calls or names")
    return lost


def csv_rows(metrics: Json) -> Iterator[Row]:
    """Heading and one row per value."""
    yield "metric", "rank", "step", "time", "value"
    for curve in metrics["curves"]:
        rank = "" if curve["rank"] is None else str(curve["rank"])
        for step, time, value in zip(curve["steps"], curve["times"], curve["values"], strict=True):
            yield harmless(curve["name"]), rank, f"{float(step):.15g}", f"{time:.6f}", repr(float(value))


RANKING = ("NAME", "STATE", "BEST", "AT", "LAST", "SCRIPT")


def ranked(jobs: Sequence[tuple[Json, Sequence[Json]]], by: str, largest: bool | None = None) -> list[Json]:
    """The jobs by the best value of a metric, the best first; those without it stand at the end. Each comes with its
    curves. `largest`: True if the largest value is the best; None: as the metric's name tells, else the smallest.

    Raises NotFound: no job has this metric.
    """
    is_larger = bool(grows(by) if largest is None else largest)
    if not any(curve["name"] == by for _, curves in jobs for curve in curves):
        known = sorted({curve["name"] for _, curves in jobs for curve in curves})
        raise NotFound(f"no job of these has the metric {by!r}; they have {', '.join(known) or 'none'}")
    found = []
    for job, curves in jobs:
        curve = next((curve for curve in curves if curve["name"] == by), None)
        at = best_at(curve, is_larger) if curve else None
        known_of = {"name": job["name"], "state": job["state"], "script": script(job["spec"])}
        if curve and at is not None:
            best, step, last = curve["values"][at], curve["steps"][at], curve["values"][-1]
            known_of |= {"best": float(best), "axis": curve["axis"], "step": step, "last": last}
        found.append(known_of)
    sign = -1 if is_larger else 1
    return sorted(found, key=lambda job: sign * job["best"] if "best" in job else math.inf)


def ranking(jobs: Sequence[Json]) -> list[Row]:
    """The cells of RANKING for jobs from `ranked`."""
    cells = [
        (number(job["best"]), _place(job["axis"], job["step"]), number(job["last"])) if "best" in job else ("-",) * 3
        for job in jobs
    ]
    return [(job["name"], job["state"], *known, job["script"]) for job, known in zip(jobs, cells, strict=True)]


def grows(name: str) -> bool | None:
    """True if the largest value of a metric of this name is the best; None: the name does not tell."""
    known = [
        is_larger for is_larger, words in ((False, _FALLS), (True, _GROWS)) if any(w in name.lower() for w in words)
    ]
    return known[-1] if known else None


def best_at(curve: Json, grows: bool) -> int | None:
    """Index of the best value; None: all are NaN or infinite."""
    values = [float(value) for value in curve["values"]]
    finite = [at for at, value in enumerate(values) if math.isfinite(value)]
    return (max if grows else min)(finite, key=values.__getitem__, default=None)


def _row(curve: Json) -> Row:
    is_larger = grows(curve["name"])
    at = None if is_larger is None else best_at(curve, is_larger)
    best = ("", "") if at is None else _value(curve, at)
    rank = "-" if curve["rank"] is None else str(curve["rank"])
    values = [float(value) for value in curve["values"]]
    return (curve["name"], rank, spark(values), *_value(curve, -1), *best, str(curve["points"]))


def _value(curve: Json, index: int) -> tuple[str, str]:
    return number(curve["values"][index]), _place(curve["axis"], curve["steps"][index])


def _place(axis: str, step: float) -> str:
    return f"{'value' if axis == 'count' else axis} {float(step):.10g}"


def spark(values: Sequence[float], width: int = _WIDTH) -> str:
    """The means of up to `width` parts as bars between the lowest and the highest; `!`: a part has NaN or infinity."""
    count = min(width, len(values))
    parts = [values[i * len(values) // count : (i + 1) * len(values) // count] for i in range(count)]
    means = [sum(part) / len(part) for part in parts]
    shown = [mean for mean in means if abs(mean) < _HUGE]
    low, span = min(shown, default=0.0), max(shown, default=0.0) - min(shown, default=0.0)
    return "".join(
        _BARS[int((mean - low) / span * 7.999) if span > 0 else 0] if abs(mean) < _HUGE else "!" for mean in means
    )
