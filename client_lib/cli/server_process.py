"""`python -m server_stub` as a process of its own: the command line imports nothing of the server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec

from client_lib.errors import NotSupported

LIBRARIES = ("fastapi", "uvicorn", "sqlalchemy", "alembic", "pydantic_settings", "prometheus_client")
"""By which one sees that the extra is installed."""

# As `python -m server_stub`, but without the current folder on the path: a user's `queue.py` there is not the server's.
_START = (
    "import runpy, sys; sys.path = [p for p in sys.path if p]; "
    "runpy.run_module('server_stub', run_name='__main__', alter_sys=True)"
)


def command_line(args: Sequence[str]) -> list[str]:
    """Raises NotSupported naming the extra where the server's libraries are missing."""
    missing = [name for name in LIBRARIES if find_spec(name) is None]
    if missing:
        raise NotSupported(
            f"the server's libraries are not installed here ({', '.join(missing)})",
            hint=f"{sys.executable} -m pip install 'client-lib[server]' installs them",
        )
    return [sys.executable, "-c", _START, *args]


def become(args: Sequence[str]) -> int:
    """Be the server from here on: signals and the exit code are its own. Returns on Windows only, which can't."""
    line = command_line(args)
    sys.stdout.flush()
    if os.name == "posix":
        os.execv(line[0], line)
    return subprocess.call(line)
