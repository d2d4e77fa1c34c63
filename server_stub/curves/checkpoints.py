"""Makes the list of a job's checkpoints from what its launchers have told. Pure."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from math import inf
from typing import NamedTuple

from client_lib.launcher_protocol.checkpoint_lines import DAMAGED, WRITING, SeenCheckpoint
from client_lib.spec.checkpoints import JobCheckpoint

_SLACK_S = 0.1
"""Longest time from the print of a line until the launcher reads it, and gives it its time."""


class Told(NamedTuple):
    """The facts that the log of one attempt tells."""

    seen: Mapping[str, SeenCheckpoint] | None
    """The checkpoints by their paths; None: nobody has looked."""
    printed: Sequence[tuple[float, float]]
    """Times, in seconds since 1970, and steps of the script, as it printed them."""
    ended: bool
    """The ranks of the attempt have ended."""


def listed(attempts: Sequence[Told]) -> list[JobCheckpoint]:
    """The checkpoints of a job, whose attempts come in their order. The newest attempt with a list
    tells which there are, and the earlier ones tell who wrote them."""
    lists = [number for number, told in enumerate(attempts, 1) if told.seen is not None]
    if not lists:
        return []
    newest = attempts[lists[-1] - 1]
    found = [
        _checkpoint(seen, _writer(seen, attempts), attempts, newest.ended)
        for seen in (newest.seen or {}).values()
    ]
    return sorted(found, key=_order)


def _writer(seen: SeenCheckpoint, attempts: Sequence[Told]) -> int | None:
    """The number of the first attempt that has seen it as its own, in this version."""
    for number, told in enumerate(attempts, 1):
        then = (told.seen or {}).get(seen.path)
        if then is not None and then.own and then.modified == seen.modified:
            return number
    return None


def _checkpoint(
    seen: SeenCheckpoint, writer: int | None, attempts: Sequence[Told], ended: bool
) -> JobCheckpoint:
    step = seen.step
    if step is None and writer is not None:
        step = _step_at(seen.modified, attempts[writer - 1].printed)
    return JobCheckpoint(
        path=seen.path,
        format=seen.format,
        step=step,
        size=seen.size,
        modified_at=datetime.fromtimestamp(seen.modified, timezone.utc),
        attempt=writer,
        state=DAMAGED if ended and seen.state == WRITING else seen.state,
        missing=seen.missing,
        pointers=seen.pointers,
    )


def _step_at(time: float, printed: Sequence[tuple[float, float]]) -> int | None:
    """The last step that was printed before this time."""
    count = bisect_right([at for at, _ in printed], time + _SLACK_S)
    return int(printed[count - 1][1]) if count else None


def _order(checkpoint: JobCheckpoint) -> tuple[float, datetime]:
    return (-inf if checkpoint.step is None else checkpoint.step), checkpoint.modified_at
