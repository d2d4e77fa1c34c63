"""The faults of a drill, and the moment at which each happens. Pure."""

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple


class Fault(str, Enum):
    """A fault, by the name that reports give it."""

    KILL = "all ranks killed"
    TERM = "stopped with SIGTERM"
    RANK = "one rank killed"
    SAVE = "killed while it saves"
    DAMAGED = "newest checkpoint damaged"
    FROZEN = "one rank frozen for 5 s"
    WORKER = "a worker lost"
    DISK = "disk full at a save"

    @property
    def resumes(self) -> bool:
        """The run ends by the fault, and a second one resumes."""
        return self is not Fault.FROZEN


FAULTS = tuple(Fault)
"""All faults, in the order in which they are tried."""
QUICK = (Fault.KILL, Fault.TERM, Fault.DAMAGED)
"""The faults of a quick drill."""
FROZEN_S = 5.0
_SAVES_BEFORE = {Fault.DAMAGED: 2, Fault.SAVE: 2}
"""Least number of saves before a fault; 1 for all others. A damaged newest checkpoint needs
another one before it."""
_AT_THE_NEXT_SAVE = (Fault.SAVE, Fault.DISK)
"""Faults that strike at the save behind their moment, which is not the last one."""


class Course(NamedTuple):
    """The times at which an undisturbed run has saved and stepped, in seconds since its ranks
    began."""

    ended: float
    saves: Sequence[float]
    steps: Sequence[float]
    """Empty: the script has no optimizer of torch."""


class Moment(NamedTuple):
    """The moment of a fault in a run that goes as the undisturbed one."""

    saves: int
    """Least number of saves before, if this run saves later than the undisturbed one."""
    steps: int | None
    """Number of steps of the optimizer before; None: unknown, `after_s` counts."""
    after_s: float
    """Seconds since the start of the ranks."""


def moment(fault: Fault, course: Course, part: float) -> Moment:
    """A moment behind a save, and before the next one or the end; at least one step is left to
    make. `part`, from 0 to 1, chooses among the possible moments."""
    saves = _before_the_end(course)
    if fault in _AT_THE_NEXT_SAVE:
        saves = saves[:-1]
    least = min(_SAVES_BEFORE.get(fault, 1), len(saves))
    choices = range(least, len(saves) + 1)
    chosen = choices[min(int(part * len(choices)), len(choices) - 1)]
    begin = saves[chosen - 1] if chosen else 0.0
    end = course.saves[chosen] if chosen < len(course.saves) else course.ended
    within = 0.25 + 0.5 * (part * len(choices) % 1.0)
    at = begin + within * (end - begin)
    return Moment(least, _steps_at(course, begin, at), at)


def _before_the_end(course: Course) -> Sequence[float]:
    """The saves behind which at least one step comes."""
    last = course.steps[-1] if course.steps else 0.9 * course.ended
    return [save for save in course.saves if save < last]


def _steps_at(course: Course, begin: float, at: float) -> int | None:
    """At least one step is between a save and the fault, so that something is lost."""
    if not course.steps:
        return None
    before_save = sum(step <= begin for step in course.steps)
    before = sum(step <= at for step in course.steps)
    return min(max(before, before_save + 1), max(1, len(course.steps) - 1))
