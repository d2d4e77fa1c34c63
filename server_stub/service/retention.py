"""Decides which finished jobs and unused snapshots expire. Pure; `cleaning` removes them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from server_stub.files.snapshots import StoredSnapshot
from server_stub.store.rows import Finished

GB = 10**9
UPLOAD_GRACE = timedelta(hours=1)
"""An unused snapshot younger than this is kept whatever its size: its submit may follow."""


@dataclass(frozen=True)
class Retention:
    """The settings of retention; None: no bound."""

    days: float | None = 30.0
    gb: float | None = 20.0

    def __str__(self) -> str:
        days = f"{self.days:g} days after their end" if self.days else "for ever"
        return f"finished jobs are kept {days}" + (f", at most {self.gb:g} GB of them" if self.gb else "")

    def too_old(self, now: datetime) -> datetime | None:
        """The time before which things expire; None: nothing expires."""
        return now - timedelta(days=self.days) if self.days else None


def jobs_to_remove(finished: Sequence[Finished], retention: Retention, now: datetime, other_bytes: int) -> list[int]:
    """`seq` of the jobs that are too old, then of the oldest until the rest fits. `finished`: oldest end first;
    `other_bytes`: size of the unused snapshots, which counts too."""
    limit = retention.too_old(now)
    gone = [job.seq for job in finished if limit and job.finished_at < limit]
    kept = finished[len(gone) :]
    if retention.gb is None:
        return gone
    excess = sum(job.size_bytes for job in kept) + other_bytes - retention.gb * GB
    for job in kept:
        if excess <= 0:
            break
        gone.append(job.seq)
        excess -= job.size_bytes
    return gone


def snapshots_to_remove(
    stored: Iterable[StoredSnapshot], in_use: Collection[str], retention: Retention, now: datetime
) -> list[StoredSnapshot]:
    """Snapshots that no job uses and that are too old, then the oldest until the rest fits."""
    idle = sorted((s for s in stored if s.sha256 not in in_use), key=lambda snapshot: snapshot.used_at)
    limit, fresh = retention.too_old(now), (now - UPLOAD_GRACE).timestamp()
    excess = sum(s.size for s in idle) - retention.gb * GB if retention.gb is not None else 0.0
    gone = []
    for snapshot in idle:
        old = limit is not None and snapshot.used_at < limit.timestamp()
        if old or (excess > 0 and snapshot.used_at < fresh):
            gone.append(snapshot)
            excess -= snapshot.size
    return gone
