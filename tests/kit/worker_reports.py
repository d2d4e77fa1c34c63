"""Reports of workers, as launchers write them."""

from typing import Any

from client_lib.launcher_protocol.report import Report


def report(worker: int = 0, **changed: Any) -> Report:
    """The whole report of a worker that has succeeded, or that has other values."""
    whole: Report = {
        "protocol": 1,
        "worker": worker,
        "attempt": 1,
        "exit_code": 0,
        "reason": "Completed",
        "message": "fine",
        "started_at": None,
        "ended_at": "2026-11-22T12:00:00+00:00",
        "first_failing_rank": None,
        "ranks": [],
        "log_end_seq": 0,
        "log_end_offset": 0,
    }
    whole.update(changed)  # type: ignore[typeddict-item]
    return whole
