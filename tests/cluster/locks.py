"""File locks: one command at a time changes a cluster, one at a time builds. The kernel frees them with the holder."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.errors import ClusterError
from tests.cluster.waiting import until


@contextmanager
def held(path: Path, limit_s: float, what: str) -> Iterator[None]:
    """Raises ClusterError when another process still holds it after `limit_s`; `what` says what that one does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        for _ in until(limit_s, pause_s=0.1):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                continue
        else:
            raise ClusterError(f"another process {what}, for {limit_s:g} s now; `fuser {path}` tells which")
        yield
