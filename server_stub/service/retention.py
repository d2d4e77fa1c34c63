"""The rule of retention: which finished jobs and unused snapshots expire. Pure: `cleanup` removes
them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

T = TypeVar("T")

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

    def limits(
        self, now: datetime, kept_bytes: int, free_bytes: int
    ) -> tuple[datetime | None, float]:
        """The time before which things expire (None: nothing does), and the largest size of all
        finished jobs and unused snapshots. `kept_bytes`: their size now."""
        size = (
            self.gb * GB if self.gb is not None else DISK_SHARE * (kept_bytes + max(free_bytes, 0))
        )
        return now - timedelta(days=min(self.days, _DAYS_MAX)) if self.days else None, size


def to_remove(
    things: Sequence[tuple[T, datetime, int]],
    oldest: datetime | None,
    excess: float,
    fresh_from: datetime | None = None,
) -> list[T]:
    """The keys of things (key, time, bytes) from before `oldest`, then of the oldest until `excess`
    bytes are gone, but of none from `fresh_from` on. `things`: oldest first."""
    gone = []
    for key, at, size in things:
        too_old = oldest and at < oldest
        if not too_old and (excess <= 0 or (fresh_from and at >= fresh_from)):
            break
        gone.append(key)
        excess -= size
    return gone
