"""Hands the checkpoints of one job on to another: as a copy, so that neither writes into the other's."""

from __future__ import annotations

import shutil
from pathlib import Path

from server_stub.runtimes import Attempt


def hand_on(attempt: Attempt, checkpoints: Path) -> None:
    """Copy them into `checkpoints`, where that is the job's own directory and isn't there yet. May take long.

    Raises OSError: there is no room. Half a copy is never taken for a whole one.
    """
    given = attempt.checkpoints_from
    if given is None or attempt.spec.checkpoint_dir is not None or checkpoints.exists() or not given.is_dir():
        return
    half = checkpoints.with_name(f"{checkpoints.name}.new")
    shutil.rmtree(half, ignore_errors=True)
    shutil.copytree(given, half, symlinks=True)
    half.rename(checkpoints)
