"""The local server that tests share, and scripts of users, run as their own programs."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from client_lib.client import Client
from tests.kit.local_server import client, folder, own_configuration

__all__ = ["client", "folder", "own_configuration"]


@pytest.fixture(autouse=True)
def _local(client: Client) -> None:
    """Every test here talks to the local server."""


Script = Callable[..., str]


@pytest.fixture
def script(folder: Path) -> Script:
    """Run a user's script, whose functions are in its `__main__`; what it prints."""

    def run(text: str, name: str = "main.py", cwd: Path = folder) -> str:
        (folder / name).write_text(textwrap.dedent(text))
        command = [sys.executable, str(folder / name)]
        done = subprocess.run(
            command, cwd=cwd, env=dict(os.environ), capture_output=True, text=True, timeout=100
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    return run
