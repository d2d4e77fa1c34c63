"""Which ranks a job has: who asks for lines, or the result, of another one is told, and doesn't wait in vain."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from client_lib.errors import NotFound
from client_lib.worker.directory import Directory, read_json


def refuse_unknown(asked: Iterable[int], logs: Iterable[Path]) -> None:
    """Raises NotFound: a rank that no attempt has. `logs`: for each, where the log of its worker 0 is, or will be.

    Before an attempt is planned nobody knows how many ranks it gets (GPUs decide it), and none is refused.
    """
    counts = [_ranks(Directory(str(log.parent))) for log in logs]
    unknown = [rank for rank in sorted(asked) if rank >= max(counts)]
    if all(counts) and unknown:
        there_are = "its only rank is 0" if max(counts) == 1 else f"its ranks are 0 to {max(counts) - 1}"
        raise NotFound(f"this job has no rank {unknown[0]}", hint=there_are)


def _ranks(worker: Directory) -> int:
    """0: not planned yet."""
    plan = read_json(worker.plan) or {}
    return int(plan.get("n_workers", 0) * plan.get("processes_per_worker", 0))
