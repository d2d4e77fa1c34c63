"""The launcher as one file, on every Python that is there."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from client_lib.durable import read_json
from client_lib.worker.zipapp_build import build
from tests.kit.interpreters import EACH_PYTHON
from tests.kit.waiting import until
from tests.worker.conftest import Worker


@EACH_PYTHON
def test_the_zipapp_runs_a_worker(
    worker: Callable[..., Worker], tmp_path: Path, python: str
) -> None:
    pyz = tmp_path / "worker.pyz"
    build(str(pyz))
    one = worker(
        "import sys; print('from a zipapp', sys.argv)\nraise ValueError('seen')", python=python
    )
    one.process = subprocess.Popen([python, str(pyz), one.directory.path], cwd=tmp_path)
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
    # a ConfigMap takes a megabyte, and base64 adds a third
    assert (tmp_path / "a").stat().st_size < 700_000


def test_workers_that_run_from_the_file_can_read_it_while_it_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pyz = tmp_path / "worker.pyz"
    build(str(pyz))
    before, write = pyz.read_bytes(), ZipFile.writestr

    def check_and_write(*arguments: Any) -> None:
        assert pyz.read_bytes() == before
        write(*arguments)

    # the moments of the build can't be hit from outside
    monkeypatch.setattr(ZipFile, "writestr", check_and_write)
    build(str(pyz))
    assert pyz.read_bytes() == before


def test_every_module_that_a_pod_starts_with_is_compiled(tmp_path: Path) -> None:
    build(str(tmp_path / "worker.pyz"))
    show = f"""
import sys
sys.path.insert(0, {str(tmp_path / "worker.pyz")!r})
import client_lib.worker.pod.agent, client_lib.worker.launcher, client_lib.launcher_protocol.archive
ours = [(name, module) for name, module in sys.modules.items() if name.startswith("client_lib.")]
print([name for name, module in ours if not module.__cached__])
"""
    seen = subprocess.run(
        [sys.executable, "-I", "-S", "-c", show], capture_output=True, text=True, check=True
    ).stdout
    assert seen == "[]\n"
