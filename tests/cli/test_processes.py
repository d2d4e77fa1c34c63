"""The interpreters that the command line starts: a job's is the shell's, the server's is its own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from client_lib.cli import processes
from client_lib.errors import InvalidRequest, NotSupported
from client_lib.transport import local_server

pytestmark = pytest.mark.process


@pytest.fixture
def python(tmp_path: Path) -> str:
    """An environment's python: a link, which must not be resolved."""
    link = tmp_path / "environment" / "bin" / "python"
    link.parent.mkdir(parents=True)
    link.symlink_to(sys.executable)
    return str(link)


def test_an_active_environment_wins_over_path(python: str, tmp_path: Path) -> None:
    environment = str(tmp_path / "environment")
    assert processes.find_python({"VIRTUAL_ENV": environment, "CONDA_PREFIX": "/other", "PATH": ""}) == python
    assert processes.find_python({"CONDA_PREFIX": environment, "PATH": ""}) == python


def test_without_one_it_is_the_python_of_path(python: str) -> None:
    assert processes.find_python({"PATH": str(Path(python).parent)}) == python


def test_an_environment_that_was_removed_is_passed_over(python: str) -> None:
    assert processes.find_python({"VIRTUAL_ENV": "/removed", "PATH": str(Path(python).parent)}) == python


def test_no_python_at_all_is_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="no python in PATH"):
        processes.find_python({"PATH": str(tmp_path)})


def test_without_the_servers_libraries_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_server, "LIBRARIES", ("no_such_library",))  # an install without the extra takes minutes
    with pytest.raises(NotSupported) as refused:
        processes.server_command("client-lib serve", ["--port", "0"])
    assert "no_such_library" in refused.value.message
    assert f"{sys.executable} -m pip install 'client-lib[server]'" in (refused.value.hint or "")
