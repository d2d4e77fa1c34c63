"""Options of ours behind the script, which may declare them or not; the interpreter of a
job, which is the shell's.
"""

import os
import sys
from pathlib import Path

import pytest

from client_lib.cli.commands import server
from client_lib.cli.connection import Connection
from client_lib.cli.submit_steps import find_python, undeclared
from client_lib.errors import InvalidRequest
from client_lib.job import Job
from client_lib.spec.wire import JobInfo


@pytest.mark.parametrize(
    "source",
    [
        "parser.add_argument('-N', '--n-workers', type=int)",
        "@click.option('--n-workers', '-N')\ndef main(): ...",
        "class Arguments:\n    n_workers: int = 4\n    N: int = 1",
        "def main(n_workers=1, N=2): ...",
        "'usage: train.py [--n-workers, -N ]'",
    ],
)
def test_a_script_declares_an_option_in_many_ways(source: str) -> None:
    assert undeclared(source, ["--n-workers", "-N"]) == []


def test_an_option_that_the_script_does_not_mention_is_found() -> None:
    assert undeclared("parser.add_argument('--lr')", ["--n-workers", "--name"]) == [
        "--n-workers",
        "--name",
    ]


def test_ctrl_c_while_the_doctor_waits_after_the_log_tells_how_to_stop_the_job(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(self: Job, timeout: float | None = None, *, follow: bool = False) -> JobInfo:
        raise KeyboardInterrupt

    # a Ctrl-C between the end of the log and the end of the job can't be timed
    monkeypatch.setattr(Job, "submit", lambda *_, **__: "")
    monkeypatch.setattr(Job, "logs", lambda *_, **__: None)
    monkeypatch.setattr(Job, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        server._check_gang(Connection("local", None), 1, None)
    assert "keeps running; `client-lib logs -f" in capsys.readouterr().err


# --- the interpreter of a job


@pytest.fixture
def python(tmp_path: Path) -> str:
    """An environment's python: a link, which must not be resolved."""
    link = tmp_path / "environment" / "bin" / "python"
    link.parent.mkdir(parents=True)
    link.symlink_to(sys.executable)
    return str(link)


@pytest.mark.process
def test_an_active_environment_wins_over_path(python: str, tmp_path: Path) -> None:
    environment = str(tmp_path / "environment")
    assert find_python({"VIRTUAL_ENV": environment, "CONDA_PREFIX": "/other", "PATH": ""}) == python
    assert find_python({"CONDA_PREFIX": environment, "PATH": ""}) == python


@pytest.mark.process
def test_without_one_it_is_the_python_of_path(python: str) -> None:
    assert find_python({"PATH": str(Path(python).parent)}) == python


@pytest.mark.process
def test_an_environment_that_was_removed_is_passed_over(python: str) -> None:
    assert find_python({"VIRTUAL_ENV": "/removed", "PATH": str(Path(python).parent)}) == python


@pytest.mark.process
def test_a_working_directory_that_was_removed_hides_no_python_of_path(
    python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed = tmp_path / "removed"
    removed.mkdir()
    monkeypatch.chdir(removed)
    removed.rmdir()
    # of the process, whose directory was removed
    monkeypatch.setattr(os, "environ", {"PATH": str(Path(python).parent)})
    assert find_python(os.environ) == python
    assert python in server._python()["message"]


@pytest.mark.process
def test_no_python_at_all_is_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="no python in PATH"):
        find_python({"PATH": str(tmp_path)})
