"""The little that the service itself looks at on this machine's disk. All of it may block: call it in a thread."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from client_lib.spec.wire import CodeInPlace, CodeSnapshot, Failure, JobInfo, RankReport
from server_stub.diagnose import diagnose, first_failing
from server_stub.hints import Facts, missing_file, path_beside_submitter
from server_stub.runtimes import Observation


def explain(seen: Observation, info: JobInfo, python_of: Callable[[], str | None]) -> Failure | None:
    """Why the attempt failed; None if no rank failed by itself. `python_of` tells the submitter's interpreter."""
    rank = first_failing(seen.ranks)
    if rank is None:
        return None
    facts = Facts(info.code, python_of(), _beside_submitter(rank, info))
    return diagnose(seen.ranks, info.spec, facts)


def script_change(info: JobInfo, script_path: str | None) -> str | None:
    """A notice, if a script that runs in place is not the one that was submitted."""
    if not (isinstance(info.code, CodeInPlace) and info.code.sha256 and script_path):
        return None
    try:
        now = hashlib.sha256(Path(script_path).read_bytes()).hexdigest()
    except OSError:  # gone or unreadable: its ranks say so themselves
        return None
    if now == info.code.sha256:
        return None
    return f"{script_path} was changed after it was submitted; attempt {info.attempt} runs it as it is now"


def size_of(folder: Path) -> int:
    """Bytes on disk of everything below, a file with several names once; what vanishes meanwhile counts nothing."""
    total = 0
    seen: set[int] = set()
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                status = os.lstat(os.path.join(parent, name))
            except OSError:
                continue
            if status.st_nlink == 1 or status.st_ino not in seen:
                total += status.st_blocks * 512
                seen.add(status.st_ino)
    return total


def _beside_submitter(rank: RankReport, info: JobInfo) -> str | None:
    path = missing_file(rank)
    if path is None or not isinstance(info.code, CodeSnapshot):
        return None
    beside = path_beside_submitter(path, info.code)
    return beside if beside and os.path.exists(beside) else None
