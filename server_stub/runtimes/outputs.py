"""Selects the outputs of an attempt that are kept for download, and makes the messages about them, for every runtime.

Pure except for `conflicts`, which reads the lists of kept files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from client_lib.spec.wire import CodeSnapshot
from client_lib.worker.outputs.patterns import ALL
from client_lib.worker.outputs.store import megabytes
from server_stub.files import outputs
from server_stub.runtimes import Attempt


def globs(attempt: Attempt, worker: int) -> list[str]:
    """The globs for `client_lib.worker.outputs`; []: nothing is kept. In place all workers share their files, and the
    files stay there: worker 0 alone keeps those that the job names."""
    snapshot = isinstance(attempt.code, CodeSnapshot)
    if attempt.spec.outputs is None:
        return [ALL] if snapshot else []
    return list(attempt.spec.outputs) if snapshot or worker == 0 else []


def notes(reports: Iterable[Mapping[str, Any] | None]) -> tuple[str, ...]:
    """Messages for the job's events about files that are not kept, from the reports of the workers."""
    return tuple(sentence for report in reports if report for sentence in _of_worker(report))


def conflicts(job_dir: Path, reports: Sequence[Mapping[str, Any] | None]) -> tuple[str, ...]:
    """A message if several workers wrote different files of one name. Reads files: call it in a thread."""
    keeping = [report for report in reports if report and (report.get("outputs") or {}).get("kept")]
    if len(keeping) < 2:
        return ()
    found = outputs.conflicts(outputs.listing(job_dir)[0])
    return () if found is None else (found,)


def _of_worker(report: Mapping[str, Any]) -> list[str]:
    said: Mapping[str, Any] = report.get("outputs") or {}
    who = f"worker {report.get('worker')}"
    lines = [f"outputs of {who} could not be kept: {said['problem']}"] if said.get("problem") else []
    shown = said.get("left_out", ())
    lines += [
        f"output {left['path']} of {who} ({megabytes(left['size'])}) is not kept: {left['why']}" for left in shown
    ]
    more = said.get("left_out_count", 0) - len(shown)
    return [*lines, f"{more} more outputs of {who} are not kept"] if more > 0 else lines
