"""The rule of retention: which finished jobs and unused snapshots expire. Pure: `cleanup` removes
them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple, Protocol, TypeVar

GB = 10**9
_DAYS_MAX = 500_000
"""Largest number of days: no datetime lies a million days before now."""
DEFAULT_GB = {"local": 20.0, "kubernetes": None}
"""Gigabytes of finished jobs, by runtime: a user's disk has other uses, a server's volume has
none.
"""
DISK_SHARE = 0.8
"""Share of the room for finished jobs where no size is given. The rest is for the database and
running jobs."""
UPLOAD_GRACE = timedelta(hours=1)
"""An unused snapshot that is younger is kept, whatever its size: a submit may follow."""


class Expiring(Protocol):
    """A finished job, or a snapshot that no job uses."""

    @property
    def at(self) -> datetime:
        """The end of the job, or the last use of the snapshot."""

    @property
    def size(self) -> int:
        """Bytes."""


T = TypeVar("T", bound=Expiring)


class Limits(NamedTuple):
    """The bounds at one moment."""

    oldest: datetime | None
    """Things from before this time expire; None: no thing expires because of its age."""
    most_bytes: float
    """Largest size of all finished jobs and unused snapshots."""


@dataclass(frozen=True)
class Retention:
    """The settings of retention."""

    days: float | None = 30.0
    """None: no bound."""
    gb: float | None = 20.0
    """None: the share DISK_SHARE of the room that there is."""

    def __str__(self) -> str:
        days = f"{self.days:g} days after their end" if self.days else "for ever"
        size = f"{self.gb:g} GB of them" if self.gb else f"{DISK_SHARE:.0%} of the room on the disk"
        return f"finished jobs are kept {days}, at most {size}"

    def limits(self, now: datetime, kept_bytes: int, free_bytes: int) -> Limits:
        """`kept_bytes`: the size of all finished jobs and unused snapshots now."""
        oldest = None
        if self.days:
            oldest = now - timedelta(days=min(self.days, _DAYS_MAX))
        if self.gb is not None:
            return Limits(oldest, self.gb * GB)
        room = kept_bytes + max(free_bytes, 0)
        return Limits(oldest, DISK_SHARE * room)


def size_of(things: Iterable[Expiring]) -> int:
    """The size of all things together."""
    return sum(thing.size for thing in things)


def to_remove(
    things: Sequence[T],
    oldest: datetime | None,
    excess: float,
    fresh_from: datetime | None = None,
) -> list[T]:
    """The things to remove: all from before `oldest`, then the oldest of the rest until `excess`
    bytes are free. Size alone removes nothing from `fresh_from` on. `things`: oldest first."""
    gone = []
    for thing in things:
        too_old = oldest and thing.at < oldest
        too_many = excess > 0
        fresh = fresh_from and thing.at >= fresh_from
        if not too_old and (fresh or not too_many):
            break
        gone.append(thing)
        excess -= thing.size
    return gone
