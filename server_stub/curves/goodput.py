"""Splits the time of a job into what it was used for: steps, and what they waited for. Pure.

The events of a job tell when it waited, started and ran. Within a run its steps have marks: the
entries of all ranks into collectives, or the steps that rank 0 prints. The time between two marks
beyond the usual time of their steps is a checkpoint if the directory for checkpoints was written
then; otherwise its use is unknown. A run without steps is time of the script, and after its last
step a run is ending, unless it goes on or was stopped.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import groupby, pairwise
from statistics import median
from typing import NamedTuple

from client_lib.spec.metrics import PARTS
from client_lib.spec.states import Reason, State
from client_lib.spec.wire import Event
from server_stub.curves.lag import SeenStep

_WAITS = (Reason.QUEUED, Reason.UNSCHEDULABLE)
# A delay longer than this part of the usual time of some steps is a pause, and not a slow step.
_PAUSE = 0.2
# Largest difference between the clocks of a file system and of a process.
_SLACK_S = 0.05
# A job that starts at once has no event between its submit and its start, so that it seems to have
# waited in the queue: a wait shorter than this is counted as a start.
_AT_ONCE_S = 1.0
# The marks of the last so many seconds may be missing while a run goes on, or if the run was
# stopped.
_UNSENT_S = 20.0


class Marks(NamedTuple):
    """The facts that one attempt has shown. All times are in seconds since 1970."""

    seen: Sequence[SeenStep]
    printed: Sequence[tuple[float, float]]
    """Times and steps of the script, as it printed them."""
    written: Sequence[float]
    """Times at which files of checkpoints were written."""


def split(
    events: Sequence[Event], end: datetime, attempts: Mapping[int, Marks]
) -> dict[str, float]:
    """Split the time of a job, from its first event to its end (or to `end`, if the job has not
    ended): seconds for each name in PARTS.
    """
    spent = dict.fromkeys(PARTS, 0.0)
    reached = float("-inf")
    phases = [list(same) for _, same in groupby(events, key=_phase)]
    for phase, until in zip(phases, [*(phase[0].time for phase in phases[1:]), end], strict=True):
        (attempt, use) = _phase(phase[0])
        begin = phase[0].time
        whole_s = max(0.0, (until - begin).total_seconds())
        if use == "running":
            marks = attempts.get(attempt, Marks((), (), ()))
            stops = [event.time for event in phase if event.reason == Reason.STOPPING]
            stop = stops[0] if stops else end if phase is phases[-1] else begin
            _add_run(spent, begin.timestamp(), whole_s, stop.timestamp(), marks, reached)
            reached = max([reached, *(step for _, step in marks.printed)])
        elif use:
            at_once = phase is phases[0] and len(phases) > 1 and whole_s < _AT_ONCE_S
            spent["starting" if at_once else use] += whole_s
    return spent


def _phase(event: Event) -> tuple[int, str]:
    """The attempt, and the use of the time from this event on; "": the job has ended."""
    if event.state == State.RUNNING:
        return event.attempt, "running"
    if event.state in (State.PENDING, State.RESTARTING):
        return event.attempt, "queued" if event.reason in _WAITS else "starting"
    return event.attempt, ""


def _add_run(
    spent: dict[str, float], begin: float, whole_s: float, stop: float, marks: Marks, reached: float
) -> None:
    """Add the uses of one run. `stop`: the time until which steps are expected; equal to `begin` if
    steps are expected only until the last one that is seen. `reached`: the last step of earlier
    attempts."""
    end = begin + whole_s
    places = [(at, number) for at, number in _places(marks) if begin <= at <= end]
    lengths = [(after - at) / (m - n) for (at, n), (after, m) in pairwise(places) if after > at]
    if not lengths:
        spent["script"] += whole_s
        return
    usual = median(lengths)  # time of a step
    if marks.seen:
        places.append((min(end, places[-1][0] + usual), places[-1][1] + 1))
    else:  # a step is printed at its end
        ahead = min(places[0][0] - begin, usual * (places[1][1] - places[0][1]))
        places.insert(0, (places[0][0] - ahead, places[0][1] - ahead / usual))
    normal = [step for step in marks.seen if step.length_s <= 2 * usual]
    normal_s = sum(s.length_s for s in normal)
    waited_s = sum(max(s.lag_s.values()) for s in normal)
    # the part in which all ranks wait for the last one
    lag = min(1.0, waited_s / normal_s) if normal_s else 0.0
    written = sorted(at for at in marks.written if at == at)  # NaN has no place
    again_until = max((at for at, step in marks.printed if step <= reached), default=begin)
    spent["starting"] += places[0][0] - begin
    for (at, number), (after, next_number) in pairwise(places):
        steps_s = min(after - at, (next_number - number) * usual)
        more_s = after - at - steps_s
        if _wrote(written, at, after):
            spent["checkpoints"] += more_s
        elif more_s > max(usual, _PAUSE * steps_s):
            spent["unknown"] += more_s
        else:
            steps_s += more_s
        if (at + after) / 2 <= again_until:
            spent["repeated"] += steps_s
        else:
            spent["lag"] += lag * steps_s
            spent["steps"] += (1 - lag) * steps_s
    last = places[-1][0]
    if _wrote(written, last, end):
        spent["checkpoints"] += end - last
        return
    more_s = max(0.0, min(stop, end) - last)
    if more_s > max(usual, _UNSENT_S):
        spent["unknown"] += more_s
    else:
        spent["lag"] += lag * more_s
        spent["steps"] += (1 - lag) * more_s
    spent["ending"] += end - last - more_s


def _wrote(written: Sequence[float], begin: float, end: float) -> bool:
    """True if a checkpoint was written in this time. `written`: ascending."""
    first = bisect_left(written, begin - _SLACK_S)
    return first < len(written) and written[first] <= end + _SLACK_S


def _places(marks: Marks) -> Iterator[tuple[float, float]]:
    """Times and numbers of steps, both ascending."""
    last_at = newest = float("-inf")
    for at, number in [(step.begin, float(step.number)) for step in marks.seen] or marks.printed:
        if number > newest and at >= last_at:
            last_at = at
            newest = number
            yield at, number
