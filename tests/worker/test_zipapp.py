"""The launcher as one file, on every Python that is there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from client_lib.worker.directory import read_json
from client_lib.worker.zipapp_build import build
from tests.worker.conftest import Worker, until


@pytest.mark.parametrize("python", [sys.executable, "python3.8", "python3.13"], ids=["this", "3.8", "3.13"])
def test_the_zipapp_runs_a_worker(worker: Callable[..., Worker], tmp_path: Path, python: str) -> None:
    found = shutil.which(python)
    if not found or subprocess.run([found, "-c", "pass"], capture_output=True).returncode:
        pytest.skip(f"there is no {python} here")
    pyz = tmp_path / "worker.pyz"
    build(str(pyz))
    one = worker("import sys; print('from a zipapp', sys.argv)\nraise ValueError('seen')", python=found)
    one.process = subprocess.Popen([found, str(pyz), one.directory.path], cwd=tmp_path)
    until(one._connected_or_ended, "the launcher listens")
    report = one.go().report()
    assert one.lines() == [f"from a zipapp ['{one.script}']"]
    assert report["ranks"][0]["exception"] == "ValueError: seen"
    assert os.path.exists(one.directory.error_file(0))
    assert read_json(one.directory.lock)


def test_the_same_sources_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        build(str(tmp_path / name))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert (tmp_path / "a").stat().st_size < 60_000
