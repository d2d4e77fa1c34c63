"""Which python runs a job that the command line submits: the one a user would get by typing `python`.

Never the CLI's own: that may live in an environment of its own (pipx), without torch. The SDK takes sys.executable.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping

from client_lib.errors import InvalidRequest


def find(environ: Mapping[str, str], windows: bool = os.name == "nt") -> str:
    """Absolute path of the `python` of VIRTUAL_ENV, else of CONDA_PREFIX, else of PATH. Links are not resolved: what a
    virtual environment is, its link says.

    Raises InvalidRequest if there is none.
    """
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if environ.get(variable):
            found = _python_of(environ[variable], variable, windows)
            if found:
                return found
    found = _on_path(environ)
    if found:
        return found
    raise InvalidRequest("there is no python in PATH", hint="activate the environment that the script needs")


def _python_of(prefix: str, variable: str, windows: bool) -> str | None:
    """None: a shell that still names an environment that was removed."""
    folder = prefix if windows and variable == "CONDA_PREFIX" else os.path.join(prefix, "Scripts" if windows else "bin")
    path = os.path.abspath(os.path.join(folder, "python.exe" if windows else "python"))
    return path if os.path.exists(path) else None


def _on_path(environ: Mapping[str, str]) -> str | None:
    found = (shutil.which(name, path=environ.get("PATH", "")) for name in ("python", "python3"))
    return next((os.path.abspath(path) for path in found if path), None)
