"""How every benchmark here measures: all ways in turn, round after round, so that a slow minute
hits all.

One round before the counted ones warms files and caches. Figures are medians; `p90` is the 90th
percentile.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
Samples = dict[str, list[float]]
TRIES = 5  # of one run that fails, before the benchmark gives up


def wall_times(ways: Mapping[str, Callable[[], object]], rounds: int) -> Samples:
    """Seconds of each call: `rounds` samples for each way, after one round that isn't counted."""
    samples: Samples = {name: [] for name in ways}
    for counted in [False] + [True] * rounds:
        for name, way in ways.items():
            took = time_until_one_succeeds(name, way)
            if counted:
                samples[name].append(took)
    return samples


def time_until_one_succeeds(name: str, way: Callable[[], object]) -> float:
    """Seconds of the run that succeeded, or those that it returns."""

    def timed() -> float:
        began = time.perf_counter()
        answer = way()
        return answer if isinstance(answer, float) else time.perf_counter() - began

    return until_one_succeeds(name, timed)


def until_one_succeeds(name: str, way: Callable[[], T]) -> T:
    """Return the result of the first run that succeeds. A failed run is printed on
    stderr, not timed, and repeated.
    """
    for _ in range(TRIES - 1):
        try:
            return way()
        except RuntimeError as failed:
            print(f"{name}: a run failed, which isn't counted: {failed}", file=sys.stderr)
    return way()


def joined(
    samples: Samples, file: Path | None, title: str, before: Samples | None = None
) -> Samples:
    """Behind those of earlier runs, which `file` keeps by their titles; None: behind those of
    `before`.

    For machines that are quiet for a minute at a time: rounds in pieces, each of them interleaved.
    """
    kept = (
        json.loads(file.read_text())
        if file is not None and file.exists()
        else {title: before or {}}
    )
    kept[title] = {
        name: [*kept.get(title, {}).get(name, []), *values] for name, values in samples.items()
    }
    if file is not None:
        file.write_text(json.dumps(kept))
    return dict(kept[title])


def p90(values: list[float]) -> float:
    return percentile(values, 90)


def percentile(values: list[float], percent: int) -> float:
    return sorted(values)[max(0, -(-len(values) * percent // 100) - 1)]


def table(title: str, samples: Samples, *, to: tuple[str, ...]) -> str:
    """A Markdown table: median and p90 in seconds, and the ratio of medians to
    each of the ways in `to`.
    """
    medians = {name: statistics.median(values) for name, values in samples.items()}
    lines = [
        f"\n{title} ({len(next(iter(samples.values())))} rounds)\n",
        "| way | median s | p90 s | p90/median | max/median | "
        + " | ".join(f"to {name}" for name in to)
        + " |",
        "|---|---|---|---|---|" + "---|" * len(to),
    ]
    for name, median in medians.items():
        high = p90(samples[name])
        ratios = " | ".join(f"{median / medians[other]:.2f}" for other in to)
        worst = max(samples[name]) / median
        lines.append(
            f"| {name} | {median:.3f} | {high:.3f} | {high / median:.2f} | {worst:.2f} | {ratios} |"
        )
    return "\n".join(lines)
