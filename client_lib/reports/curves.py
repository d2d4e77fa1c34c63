"""Curves of metrics as text. Pure.

Plain dicts of the server's JSON and not JobMetrics, so that `client-lib metrics` loads no pydantic.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from client_lib.reports.table import Json, Row, harmless, number, progress

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


def _row(curve: Json) -> Row:
    values = [float(value) for value in curve["values"]]
    finite = [at for at, value in enumerate(values) if math.isfinite(value)]
    name = curve["name"].lower()
    best = ("", "")
    for choose, words in ((min, _FALLS), (max, _GROWS)):
        if finite and any(word in name for word in words):
            best = _value(curve, choose(finite, key=values.__getitem__))
    rank = "-" if curve["rank"] is None else str(curve["rank"])
    return (curve["name"], rank, spark(values), *_value(curve, -1), *best, str(curve["points"]))


def _value(curve: Json, index: int) -> tuple[str, str]:
    axis = "value" if curve["axis"] == "count" else curve["axis"]
    return number(curve["values"][index]), f"{axis} {float(curve['steps'][index]):.10g}"


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
