"""Hands the checkpoints of one job on to another, on a volume that only its workers see: worker 0 copies them.

Its ranks, and those of all others, start when it is prepared. `server_stub.runtimes.checkpoints` is the twin for a
runtime that sees the folders itself. Standard library only, Python >= 3.8.
"""

import glob
import os
import shutil


def hand_on(pattern: str, checkpoints: str) -> None:
    """Copy the folder of this name, or glob, to `checkpoints`, where nothing is in that yet. May take long.

    Raises OSError: there is no room. Half a copy is never taken for a whole one.
    """
    if os.path.isdir(checkpoints) and os.listdir(checkpoints):
        return
    given = next(filter(os.path.isdir, glob.glob(pattern)), None)
    if given is None:
        return
    half = checkpoints + ".new"
    shutil.rmtree(half, ignore_errors=True)
    shutil.copytree(given, half, symlinks=True)
    os.rename(half, checkpoints)  # also over an empty one, which another worker may have made meanwhile
