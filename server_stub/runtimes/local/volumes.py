"""Volumes on one machine: nothing is mounted, so the path must be this machine's own.

Split from `notices` because it looks at the file system.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from client_lib.errors import InvalidRequest
from server_stub.runtimes.orders import volume_words


def check_volumes(volumes: Sequence[str]) -> list[str]:
    """Notices for volumes that mean another thing here.

    Raises InvalidRequest: not of the form `name:path[:ro]`, or a path that this machine doesn't have.
    """
    notices = []
    for volume in volumes:
        name, path, read_only = volume_words(volume)
        if not Path(path).is_dir():
            raise InvalidRequest(
                f"volume {name!r}: this machine has no folder {path}; locally nothing is mounted",
                hint=f"create {path}, or leave the volume out",
            )
        if read_only:
            notices.append(f"volume {name!r}: {path} is this machine's own folder; `ro` is not enforced")
    return notices
