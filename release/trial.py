"""A trial of a wheel or an sdist: installed in an empty environment, it runs the first example.

The environment has the locked packages of a server and the file that is tried, nothing else. The
ranks of the example need PyTorch, which is gigabytes: their interpreter is the one that runs this,
as a user has client-lib in one environment and PyTorch in another.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from release.artifacts import LOCK
from release.checkout import Refused


def try_package(root: Path, package: Path, version: str) -> None:
    """Install a wheel or an sdist and run the first example.

    Raises Refused: a step failed, with its output.
    """
    with tempfile.TemporaryDirectory() as scratch:
        environment = Path(scratch, "environment")
        variables = _variables(os.environ, Path(scratch, "state"))
        installer = [sys.executable, str(root / "requirements" / "install.py")]
        _run(scratch, variables, *installer, str(environment), str(root / LOCK))
        pip = [str(environment / "bin" / "python"), "-m", "pip"]
        _run(scratch, variables, *pip, "install", "--quiet", "--no-deps", str(package))
        _run(scratch, variables, *pip, "check")
        _first_example(scratch, variables, environment / "bin" / "client-lib", version)


def _first_example(folder: str, variables: Mapping[str, str], program: Path, version: str) -> None:
    shown = _run(folder, variables, str(program), "--version")
    if not shown.startswith(f"client-lib {version} (commit "):
        raise Refused(f"`client-lib --version` shows {shown!r}: no commit, or another version")
    try:
        _run(folder, variables, str(program), "init", "first")
        followed = _run(
            folder, variables, str(program), "submit", "--follow", "-c", "first/job.yaml"
        )
    finally:
        _run(folder, variables, str(program), "server", "stop")
    if "step 100/100" not in followed:
        raise Refused(f"the first example did not print its last step:\n{followed}")


def _variables(environment: Mapping[str, str], state: Path) -> dict[str, str]:
    """Variables without those of the developer; jobs get the interpreter that runs this."""
    kept = {
        name: value
        for name, value in environment.items()
        if not name.startswith(("CLIENT_LIB_", "PYTHONPATH"))
    }
    own = {
        "CLIENT_LIB_STATE_DIR": str(state),
        "CLIENT_LIB_CONFIG": str(state / "config.toml"),
        "VIRTUAL_ENV": sys.prefix,
    }
    return kept | own


def _run(folder: str, variables: Mapping[str, str], *line: str) -> str:
    """Run a command to its end; returns what it prints on stdout."""
    done = subprocess.run(
        line, cwd=folder, env=variables, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Refused(f"{' '.join(line)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout
