"""How a launcher comes up."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import client_lib
from client_lib.worker.programs import launcher_command


@pytest.mark.process
def test_a_backport_beside_the_package_does_not_hide_the_standard_library(tmp_path: Path) -> None:
    """As in a site-packages where somebody once installed enum34."""
    package = Path(client_lib.__file__).parent
    for name in ("checkpoints", "launcher_protocol", "worker"):
        shutil.copytree(package / name, tmp_path / "client_lib" / name)
    for name in ("__init__.py", "durable.py"):
        shutil.copy(package / name, tmp_path / "client_lib")
    (tmp_path / "enum.py").write_text("raise ImportError('this is the backport')")
    python, *words = launcher_command("/nowhere", sys.executable)
    command = [
        python,
        *(word.replace(str(package), str(tmp_path / "client_lib")) for word in words),
    ]
    said = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stderr
    assert said.splitlines()[-1].startswith("FileNotFoundError"), said
