"""Tells the launcher that this rank trains in a group of fewer ranks than the job has."""

from __future__ import annotations

import os

from client_lib.worker.rank_runner.this_rank import THIS_RANK


def tell_group(size: int) -> None:
    """Tell the size of the first group of this rank. Later ones, such as that of an evaluation,
    may be smaller."""
    job_size = THIS_RANK.world_size
    THIS_RANK.world_size = 0
    if not 0 < size < job_size:
        return
    try:
        with open(THIS_RANK.world_file, "w") as file:
            file.write(str(size))
    except OSError:  # nobody watches the ranks: there is no folder
        pass


def tell_variable() -> None:
    """Tell the WORLD_SIZE of a script that has ended without a group, and may have replaced the
    variable."""
    size = os.environ.get("WORLD_SIZE", "")
    if size.isdigit():
        tell_group(int(size))
