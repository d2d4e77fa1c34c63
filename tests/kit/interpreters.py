"""The Pythons of this machine, so that what must run on them is tested on those that there are.

Looked for when tests are collected: a version that isn't installed is no test, rather than one that
is skipped.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

VERSIONS = ("3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14")


def pythons() -> dict[str, str]:
    """Version -> interpreter, of those that the worker supports; the one that
    runs the tests is among them.
    """
    found = ((version, _find(version)) for version in VERSIONS)
    ours = f"{sys.version_info.major}.{sys.version_info.minor}"
    return {version: python for version, python in found if python} | {ours: sys.executable}


def _find(version: str) -> str | None:
    installed_by_pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    candidates = [
        shutil.which(f"python{version}"),
        *map(str, installed_by_pyenv.glob(f"{version}.*/bin/python{version}")),
    ]
    return next((path for path in candidates if path and _runs(path)), None)


def _runs(python: str) -> bool:
    """A shim of pyenv is there for versions that it then refuses to run."""
    return subprocess.run([python, "-c", "pass"], capture_output=True).returncode == 0


EACH_PYTHON = pytest.mark.parametrize(
    "python",
    [
        pytest.param(path, id=version, marks=[] if path == sys.executable else pytest.mark.process)
        for version, path in pythons().items()
    ],
)
