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
_PAUSE = 0.2
"""A delay longer than this part of the usual time of some steps is a pause, and not a slow step."""
_SLACK_S = 0.05
"""Largest difference between the clocks of a file system and of a process."""
_AT_ONCE_S = 1.0
"""A job that starts at once has no event between its submit and its start, so that it seems to have
waited in the queue: a wait shorter than this is counted as a start."""
_UNSENT_S = 20.0
"""Seconds before the end of a run whose marks may be missing: marks are sent in groups, and a
stopped run may not send its last group."""


class MarkedStep(NamedTuple):
    """A step of a run that has a mark."""

    at: float
    """Seconds since 1970."""
    number: float


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
    ends = [*(phase[0].time for phase in phases[1:]), end]
    for phase, until in zip(phases, ends, strict=True):
        attempt, use = _phase(phase[0])
        begin = phase[0].time
        whole_s = max(0.0, (until - begin).total_seconds())
        is_first = phase is phases[0]
        is_last = phase is phases[-1]
        if use == "running":
            marks = attempts.get(attempt, Marks((), (), ()))
            stops = [event.time for event in phase if event.reason == Reason.STOPPING]
            stop = begin
            if stops:
                stop = stops[0]
            elif is_last:
                stop = end
            _add_run(spent, begin.timestamp(), whole_s, stop.timestamp(), marks, reached)
            reached = max([reached, *(step for _, step in marks.printed)])
        elif use:
            started_at_once = is_first and not is_last and whole_s < _AT_ONCE_S
            spent["starting" if started_at_once else use] += whole_s
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
    places = [place for place in _places(marks) if begin <= place.at <= end]
    lengths = [
        (after.at - place.at) / (after.number - place.number)
        for place, after in pairwise(places)
        if after.at > place.at
    ]
    if not lengths:
        spent["script"] += whole_s
        return
    usual = median(lengths)  # time of a step
    if marks.seen:
        newest = places[-1]
        places.append(MarkedStep(min(end, newest.at + usual), newest.number + 1))
    else:  # a step is printed at its end
        first = places[0]
        ahead = min(first.at - begin, usual * (places[1].number - first.number))
        places.insert(0, MarkedStep(first.at - ahead, first.number - ahead / usual))

    lag = _lag(marks.seen, usual)
    written = sorted(at for at in marks.written if at == at)  # NaN has no place
    again_until = max((at for at, step in marks.printed if step <= reached), default=begin)
    spent["starting"] += places[0].at - begin
    for place, after in pairwise(places):
        steps_s = min(after.at - place.at, (after.number - place.number) * usual)
        more_s = after.at - place.at - steps_s
        if _wrote(written, place.at, after.at):
            spent["checkpoints"] += more_s
        elif more_s > max(usual, _PAUSE * steps_s):
            spent["unknown"] += more_s
        else:
            steps_s += more_s
        if (place.at + after.at) / 2 <= again_until:
            spent["repeated"] += steps_s
        else:
            spent["lag"] += lag * steps_s
            spent["steps"] += (1 - lag) * steps_s

    last = places[-1].at
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


def _lag(seen: Sequence[SeenStep], usual: float) -> float:
    """The part of the usual steps in which all ranks wait for the last one."""
    normal = [step for step in seen if step.length_s <= 2 * usual]
    normal_s = sum(step.length_s for step in normal)
    waited_s = sum(max(step.lag_s.values()) for step in normal)
    return min(1.0, waited_s / normal_s) if normal_s else 0.0


def _wrote(written: Sequence[float], begin: float, end: float) -> bool:
    """True if a checkpoint was written in this time. `written`: ascending."""
    first = bisect_left(written, begin - _SLACK_S)
    return first < len(written) and written[first] <= end + _SLACK_S


def _places(marks: Marks) -> Iterator[MarkedStep]:
    """The steps whose times and numbers ascend."""
    entered = [MarkedStep(step.begin, float(step.number)) for step in marks.seen]
    printed = [MarkedStep(at, number) for at, number in marks.printed]
    last = MarkedStep(float("-inf"), float("-inf"))
    for place in entered or printed:
        if place.number > last.number and place.at >= last.at:
            last = place
            yield place
