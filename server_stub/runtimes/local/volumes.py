"""Volumes on one machine: nothing is mounted, so the path must be this machine's own.

Split from `notices` because it looks at the file system.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from client_lib.errors import InvalidRequest


def check_volumes(volumes: Sequence[str]) -> list[str]:
    """Notices for volumes that mean another thing here.

    Raises InvalidRequest: not of the form `name:path[:ro]`, or a path that this machine doesn't have.
    """
    notices = []
    for volume in volumes:
        name, path, read_only = _parts(volume)
        if not Path(path).is_dir():
            raise InvalidRequest(
                f"volume {name!r}: this machine has no folder {path}; locally nothing is mounted",
                hint=f"create {path}, or leave the volume out",
            )
        if read_only:
            notices.append(f"volume {name!r}: {path} is this machine's own folder; `ro` is not enforced")
    return notices


def _parts(volume: str) -> tuple[str, str, bool]:
    parts = volume.split(":")
    read_only = parts[2:] == ["ro"]
    if len(parts) not in (2, 3) or (len(parts) == 3 and not read_only) or not all(parts) or parts[1][0] != "/":
        raise InvalidRequest(f"volume {volume!r} is not of the form name:/path or name:/path:ro")
    return parts[0], parts[1], read_only
