"""Decides which finished jobs and unused snapshots expire. Pure; `cleaning` removes them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from server_stub.files.snapshots import StoredSnapshot
from server_stub.store.rows import Finished

GB = 10**9
DEFAULT_GB = {"local": 20.0, "kubernetes": None}
"""Size of finished jobs by runtime, unless one is set: a user's disk has other uses, a server's volume has none."""
DISK_SHARE = 0.8
"""Share of the room for finished jobs where no size is given; the rest is for the database and running jobs."""
UPLOAD_GRACE = timedelta(hours=1)
"""An unused snapshot younger than this is kept whatever its size: its submit may follow."""


@dataclass(frozen=True)
class RetentionLimits:
    """The bounds of retention at one moment."""

    oldest: datetime | None
    """Things from before this time expire; None: nothing does."""
    size_bytes: float
    """Largest size of finished jobs and unused snapshots."""


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

    def limits(self, now: datetime, kept_bytes: int, free_bytes: int) -> RetentionLimits:
        """The limits now. `kept_bytes` is the size of the finished jobs and unused snapshots."""
        size = self.gb * GB if self.gb is not None else DISK_SHARE * (kept_bytes + max(free_bytes, 0))
        return RetentionLimits(now - timedelta(days=self.days) if self.days else None, size)


def jobs_to_remove(finished: Sequence[Finished], limits: RetentionLimits, other_bytes: int) -> list[int]:
    """`seq` of the jobs that are too old, then of the oldest until the rest fits. `finished`: oldest end first;
    `other_bytes`: size of the unused snapshots, which counts too."""
    gone = [job.seq for job in finished if limits.oldest and job.finished_at < limits.oldest]
    kept = finished[len(gone) :]
    excess = sum(job.size_bytes for job in kept) + other_bytes - limits.size_bytes
    for job in kept:
        if excess <= 0:
            break
        gone.append(job.seq)
        excess -= job.size_bytes
    return gone


def snapshots_to_remove(
    stored: Iterable[StoredSnapshot], in_use: Collection[str], limits: RetentionLimits, now: datetime
) -> list[StoredSnapshot]:
    """Snapshots that no job uses and that are too old, then the oldest until the rest fits."""
    idle = sorted((s for s in stored if s.sha256 not in in_use), key=lambda snapshot: snapshot.used_at)
    fresh = (now - UPLOAD_GRACE).timestamp()
    excess = sum(s.size for s in idle) - limits.size_bytes
    gone = []
    for snapshot in idle:
        old = limits.oldest is not None and snapshot.used_at < limits.oldest.timestamp()
        if old or (excess > 0 and snapshot.used_at < fresh):
            gone.append(snapshot)
            excess -= snapshot.size
    return gone
