"""Holds what the other modules know of the process that runs the script."""

import os


class _ThisRank:
    """Facts of the process that runs the script; `answers.begin` sets them."""

    pid = 0
    """The number of the process; a fork of the process has another one."""
    master = ""
    """The launcher's MASTER_ADDR, where the ranks of several workers meet; "": one worker."""
    world_size = 0
    """The launcher's WORLD_SIZE, until the rank has told of its group; 0: nothing is to tell."""
    world_file = ""
    """Path of the file in which the rank tells of a smaller group."""
    exited_at = ""
    """The place of the exit by which the script has left a loop; "": it has left none."""
    is_forked = False
    """True in a process forked from a warm pool."""


THIS_RANK = _ThisRank()


def own_file(kind: str = "") -> str:
    """Path of a file of this rank by which the launcher sees what the rank does."""
    worker_dir = os.environ.get("CLIENT_LIB_WORKER_DIR", "")
    return os.path.join(worker_dir, "stacks", kind + os.environ.get("RANK", "0"))
