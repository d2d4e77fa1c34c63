"""Paths of a pod at which volumes may be mounted. Pure."""

from __future__ import annotations

from collections.abc import Sequence

ROOT = "/client-lib"
"""Folder of a worker's own files in its pod."""
_TAKEN = (ROOT, "/dev", "/proc", "/sys", "/etc", "/bin", "/lib", "/usr")


def is_free(path: str, more: Sequence[str] = ()) -> bool:
    """True if a volume may be mounted at `path`: the container itself needs neither it nor a folder below it.

    `more` are further folders that are not free.
    """
    return (
        path.startswith("/") and ".." not in path.split("/") and not any(is_in(path, each) for each in (*_TAKEN, *more))
    )


def is_in(path: str, folder: str) -> bool:
    """True if `path` is the folder or lies below it."""
    return f"{path}/".startswith(f"{folder}/")
