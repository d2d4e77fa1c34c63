"""The python interpreters that the command line starts: the shell's for a job, its own for the server.

A job gets the python that the user would get by typing `python`, never the one of this program: that may live in an
environment of its own (pipx), without torch. The SDK takes sys.executable.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence

from client_lib.errors import InvalidRequest
from client_lib.transport.local_server import check_installed


def find_python(environ: Mapping[str, str]) -> str:
    """Absolute path of the `python` of VIRTUAL_ENV, else of CONDA_PREFIX, else of PATH. Links are not resolved: what a
    virtual environment is, its link says.

    Raises InvalidRequest if there is none.
    """
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if environ.get(variable):
            found = _python_of(environ[variable], variable)
            if found:
                return found
    on_path = (shutil.which(name, path=environ.get("PATH", "")) for name in ("python", "python3"))
    if found := next(filter(None, on_path), None):
        return os.path.abspath(found)
    raise InvalidRequest("there is no python in PATH", hint="activate the environment that the script needs")


def _python_of(prefix: str, variable: str) -> str | None:
    """None: a shell that still names an environment that was removed."""
    windows = os.name == "nt"
    folder = prefix if windows and variable == "CONDA_PREFIX" else os.path.join(prefix, "Scripts" if windows else "bin")
    path = os.path.abspath(os.path.join(folder, "python.exe" if windows else "python"))
    return path if os.path.exists(path) else None


# --- the server

# Without the current folder on the path: a user's `queue.py` there is not the server's.
_START = (
    "import sys; sys.path = [p for p in sys.path if p]; "
    "from server_stub.__main__ import main; sys.exit(main(sys.argv[2:], sys.argv[1]))"
)


def server_command(program: str, args: Sequence[str]) -> list[str]:
    """The server's own command line, which calls itself `program` in its help. Nothing of the server is imported here.

    Raises NotSupported naming the extra where the server's libraries are missing.
    """
    check_installed()
    return [sys.executable, "-c", _START, program, *args]


def replace_by_server(program: str, args: Sequence[str]) -> int:
    """Replace this process by the server: signals and the exit code are its own. Windows has no exec: a child there."""
    line = server_command(program, args)
    sys.stdout.flush()
    if os.name == "posix":
        os.execv(line[0], line)
    return subprocess.call(line)
