"""Decides from samples of a rank's work for how long the rank has done nothing. Pure."""

from collections import deque
from typing import Deque, NamedTuple, Optional

QUIET_S = 10.0
"""Shortest time without a move after which a rank is quiet."""
_LATE_S = 5.0
"""After a longer time between two samples nothing is concluded: the launcher itself did not run."""
_PAUSE_S = 2.0
"""Shorter pauses between two moves are not counted."""
_PATIENCE = 6
"""A rank is quiet only after so many times its usual pause."""
_PAUSES = 9
"""Number of the newest pauses; their median is the usual pause."""
_MAIN_CPU = 0.02
"""Part of a core that the main thread of a still rank may use."""
_OTHER_CPU = 0.05
"""Part of a core that the other threads and the children of a still rank may use together: one of
them may print lines, for example."""
_OTHER_BYTES = 65536.0
"""Bytes that the other threads and the children of a still rank may read and write in a second."""


class Use(NamedTuple):
    """CPU time and input and output of some threads until now."""

    cpu_s: float
    size: int
    """Bytes read and written."""


class Sample(NamedTuple):
    """The work of a rank until now."""

    at: float
    """Monotonic seconds."""
    busy: bool
    """The main thread has work for a core, or waits for a disk; or a part of what
    the rank does is not known.
    """
    main: Use
    process: Use
    children: Optional[Use]
    """None: they were not read, because the rank itself has moved shortly before."""
    entered: float = 0.0
    """Changes when the rank enters or ends a collective
    (rank_runner/collectives.py), at most a second later.
    """


def moved(before: Sample, after: Sample) -> bool:
    """True if the rank has done something between two samples, or if nobody knows. Pure."""
    passed = after.at - before.at
    if after.busy or passed > _LATE_S or after.main.size != before.main.size:
        return True
    if after.main.cpu_s - before.main.cpu_s > _MAIN_CPU * passed:
        return True
    others = ((before.process, after.process), (before.children, after.children))
    return any(
        new.cpu_s - old.cpu_s > _OTHER_CPU * passed or new.size - old.size > _OTHER_BYTES * passed
        for old, new in others
        if old is not None and new is not None
    )


class Stillness:
    """The time for which one rank has been still, by its samples. Pure."""

    def __init__(self, first: Sample) -> None:
        self.last = first
        """The newest sample. The caller replaces it after work that the launcher has caused, which
        is no move."""
        self._since = first.at
        self._pauses: Deque[float] = deque(maxlen=_PAUSES)

    def add(self, sample: Sample) -> None:
        has_moved = moved(self.last, sample)
        if has_moved or sample.entered != self.last.entered:
            if self.still_s >= _PAUSE_S:
                self._pauses.append(self.still_s)
            self._since = sample.at if has_moved else self.last.at
        self.last = sample

    @property
    def still_s(self) -> float:
        return self.last.at - self._since

    @property
    def quiet_s(self) -> float:
        """Seconds without a move; 0.0: the rank is not quiet yet."""
        usual = sorted(self._pauses)[len(self._pauses) // 2] if self._pauses else 0.0
        return self.still_s if self.still_s >= max(QUIET_S, _PATIENCE * usual) else 0.0
