"""Reports of workers, as launchers write them."""

from typing import Any


def report(worker: int = 0, **changed: Any) -> dict[str, Any]:
    """The whole report of a worker that has succeeded, or that has other values."""
    return {
        "protocol": 1,
        "worker": worker,
        "attempt": 1,
        "exit_code": 0,
        "reason": "Completed",
        "message": "fine",
        "ended_at": "2026-11-22T12:00:00+00:00",
        "ranks": [],
        "log_end_seq": 0,
        "log_end_offset": 0,
        **changed,
    }
