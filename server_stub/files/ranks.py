"""Checks that a job has the ranks of a request, which would otherwise wait for lines that never come."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from client_lib.errors import NotFound
from client_lib.worker.directory import Directory, read_json
from server_stub.files.owned import opener


def refuse_unknown(asked: Iterable[int], logs: Iterable[Path]) -> None:
    """Raises NotFound: no attempt has one of the ranks `asked`. `logs`: the log directory of worker 0 of each attempt.

    The number of ranks may depend on the GPUs that an attempt gets: before it is planned every rank is accepted.
    """
    counts = [_ranks(log.parent) for log in logs]
    unknown = [rank for rank in sorted(asked) if rank >= max(counts)]
    if all(counts) and unknown:
        there_are = "its only rank is 0" if max(counts) == 1 else f"its ranks are 0 to {max(counts) - 1}"
        raise NotFound(f"this job has no rank {unknown[0]}", hint=there_are)


def _ranks(worker_dir: Path) -> int:
    """The number of ranks; 0: not planned yet."""
    plan = read_json(Directory(str(worker_dir)).plan, opener(worker_dir)) or {}
    return int(plan.get("n_workers", 0) * plan.get("processes_per_worker", 0))
