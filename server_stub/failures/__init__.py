"""Explains a failed attempt: the meaning of exit codes (diagnose), known causes and their remedies (hints). Both are
pure; the functions here look up facts on this machine's disk and may block: call them in a thread.

Which rank failed first is decided in `client_lib.worker.outcome`; nothing here chooses a rank.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from client_lib.spec.wire import CodeInPlace, CodeSnapshot, Failure, JobInfo, RankReport
from server_stub.failures.diagnose import diagnose
from server_stub.failures.hints import Facts, missing_file, path_beside_submitter


def explain(worker: int, rank: RankReport, info: JobInfo, python_of: Callable[[], str | None]) -> Failure:
    """The failure of the rank that ended the attempt. `python_of` returns the submitter's interpreter."""
    return diagnose(worker, rank, Facts(info.code, python_of(), _beside_submitter(rank, info)))


def script_change(info: JobInfo, script_path: str | None) -> str | None:
    """A notice if a script that runs in place was changed after it was submitted."""
    if not (isinstance(info.code, CodeInPlace) and info.code.sha256 and script_path):
        return None
    try:
        now = hashlib.sha256(Path(script_path).read_bytes()).hexdigest()
    except OSError:  # gone or unreadable: its ranks report that
        return None
    if now == info.code.sha256:
        return None
    return f"{script_path} was changed after it was submitted; attempt {info.attempt} runs it as it is now"


def _beside_submitter(rank: RankReport, info: JobInfo) -> str | None:
    path = missing_file(rank)
    if path is None or not isinstance(info.code, CodeSnapshot):
        return None
    beside = path_beside_submitter(path, info.code)
    return beside if beside and os.path.exists(beside) else None
