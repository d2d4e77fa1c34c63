"""Words about a job that texts share: its state as a sentence, ranks, durations.

Pure and standard library only."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import TYPE_CHECKING

from client_lib.spec.states import State

if TYPE_CHECKING:  # lists load no pydantic
    from client_lib.spec.wire import JobInfo


def summary(info: JobInfo, lasts_s: float | None = None) -> str:
    """State, reason and message of a job, and what deserves attention beside the cause of a
    failure. `lasts_s`: seconds since it entered its state; None: not told.
    """
    said = _state(info, lasts_s)
    sentences = [] if info.state is State.FAILED else [each.sentence for each in info.attention]
    return "; ".join([said, *(each for each in sentences if each not in said)])


def _state(info: JobInfo, lasts_s: float | None) -> str:
    because = f": {info.message}" if info.message else ""
    if info.state is State.FAILED:
        last = f" in attempt {info.attempt}" if info.attempt > 1 else ""
        failure = info.failure
        end = failure.meaning if failure else None
        if failure is not None and failure.rank is not None:
            worker = "" if failure.worker is None else f" on worker {failure.worker}"
            code = "" if failure.exit_code is None else f" with exit code {failure.exit_code}"
            end = f"rank {failure.rank}{worker} ended{code}{in_brackets(failure.meaning)}"
        if end:  # the message, which it replaces, has `retry` too
            return (
                f"job {info.name} FAILED ({info.reason}): "
                f"{end}{last}{f'; {info.retry}' if info.retry else ''}"
            )
        return (
            f"job {info.name} FAILED ({info.reason}): {info.message or 'no reason is known'}{last}"
        )
    if info.state is State.SUCCEEDED and info.finished_at:
        took = info.finished_at - (info.started_at or info.created_at)
        return f"job {info.name} SUCCEEDED in {duration(took.total_seconds())}{because}"
    lasts = "" if info.state.final or lasts_s is None else f", for {duration(lasts_s)}"
    return f"job {info.name} is {info.state} ({info.reason}){lasts}{because}"


def in_brackets(words: str | None) -> str:
    return f" ({words})" if words else ""


def spans(ranks: Iterable[int | None], between: str = ",") -> str:
    """Format ranks as `0-3,7`; "" for no rank."""
    known = sorted(rank for rank in ranks if rank is not None)
    runs = [
        [rank for _, rank in run]
        for _, run in groupby(enumerate(known), lambda pair: pair[1] - pair[0])
    ]
    return between.join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def duration(seconds: float) -> str:
    """`42s`, `3m12s`, `2h05m`, `4d03h`; never negative, whatever two clocks say."""
    whole = max(0, round(seconds))
    for unit, length, below, part in (
        ("d", 86400, "h", 3600),
        ("h", 3600, "m", 60),
        ("m", 60, "s", 1),
    ):
        if whole >= length:
            return f"{whole // length}{unit}{whole % length // part:02d}{below}"
    return f"{whole}s"


def about(seconds: float) -> str:
    """An estimated time: `40 s`, `12 min`, `3.5 h`, `2.1 d`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 36 * 3600 else f"{seconds / 86400:.1f} d"
