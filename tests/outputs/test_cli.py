"""`client-lib download` and `resubmit --set`, and packages of a real job, on a real server."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from client_lib import Job, JobFailed
from client_lib.client import Client
from tests.cli.terminal import Terminal
from tests.worker.wheels import only_from, wheel

PATIENCE_S = 100.0


def cli(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "client_lib", *words]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, env=dict(os.environ)
    )


@pytest.fixture
def done(folder: Path) -> Job:
    """Of a snapshot; it has left two files."""
    (folder / "train.py").write_text("open('a.pt', 'w').write('1'); open('b.txt', 'w').write('22')")
    job = Job(script="train.py", code="snapshot", log_file=None)
    job.submit()
    job.wait(PATIENCE_S)
    return job


def test_download_fetches_lists_and_says_where(done: Job, folder: Path) -> None:
    name = str(done.name)
    listed = cli("download", name, "--list", "-o", "json")
    assert [(file["path"], file["size"]) for file in json.loads(listed.stdout)] == [
        ("a.pt", 1),
        ("b.txt", 2),
    ]
    fetched = cli("download", name, "out", "--pattern", "*.pt")
    assert (fetched.returncode, fetched.stdout) == (0, f"{Path('out', 'a.pt')}\n")
    assert (folder / "out" / "a.pt").read_text() == "1"
    assert cli("download", name).returncode == 0
    assert sorted(path.name for path in (folder / name).iterdir()) == ["a.pt", "b.txt"]
    nothing = cli("download", name, "--pattern", "*.bin")
    assert (nothing.returncode, nothing.stdout) == (0, "")
    assert "none of the 2 outputs" in nothing.stderr


def test_on_a_terminal_a_bar_shows_how_far_the_download_is(done: Job, folder: Path) -> None:
    with Terminal(
        "download", str(done.name), "here", environment=dict(os.environ), cwd=folder
    ) as terminal:
        shown = terminal.read_to_end()
    assert terminal.exit_code == 0
    assert b"2 of 2 files" in shown
    assert (folder / "here" / "b.txt").read_text() == "22"


def test_resubmit_sets_fields_and_shows_what_differs(done: Job) -> None:
    again = cli(
        "resubmit", str(done.name), "--set", "labels=try=2", "--set", "max_retry=3", "-o", "json"
    )
    info = json.loads(again.stdout)
    assert (info["spec"]["labels"], info["spec"]["max_retry"]) == ({"try": "2"}, 3)
    assert "max_retry: none -> 3" in again.stderr
    assert "the same code: snapshot" in again.stderr
    refused = cli("resubmit", str(done.name), "--set", "n_worker=3")
    assert (refused.returncode, "did you mean n_workers=" in refused.stderr) == (2, True)


def test_resubmit_takes_other_arguments_behind_two_dashes(done: Job) -> None:
    name = str(done.name)
    again = cli("resubmit", name, "-o", "json", "--", "--lr", "0.7", "two words")
    assert json.loads(again.stdout)["spec"]["args"] == ["--lr", "0.7", "two words"]
    assert "args: none -> --lr 0.7 'two words'" in again.stderr
    assert f"starts fresh, without the checkpoints of {name}: args differ" in again.stderr
    other = json.loads(again.stdout)["name"]
    assert cli("wait", other).returncode == 0
    without = cli("resubmit", other, "-o", "json", "--resume", "--")
    assert json.loads(without.stdout)["spec"]["args"] == []
    assert cli("resubmit", "-o", "json", "--", name).returncode == 2
    refused = [("-o", "json", "x"), ("--set", "args=--lr 0.5"), ("--set", "args=a", "--", "b")]
    assert [cli("resubmit", name, *words).returncode for words in refused] == [2, 2, 2]


@pytest.mark.process
def test_a_scripts_header_brings_its_packages(
    folder: Path, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel(tmp_path / "wheels", "headed", "2.5")
    for name, value in only_from(tmp_path / "wheels").items():
        monkeypatch.setenv(name, value)
    (folder / "train.py").write_text(
        "# /// script\n# dependencies = ['headed>=2']\n# ///\nimport headed; "
        "print(headed.__version__)\n"
    )
    job = Job(script="train.py", n_workers=2, log_file=None)
    job.submit()
    job.wait(PATIENCE_S)
    assert list(job.log_lines()) == ["2.5", "2.5"]
    assert job.spec.requirements == ["headed>=2"]

    missing = Job(script="train.py", requirements=["headed==9"], log_file=None, client=client)
    missing.submit()
    with pytest.raises(JobFailed, match=r"no version of headed==9 is there; there are: 2\.5"):
        missing.wait(PATIENCE_S)
    assert missing.info().reason == "StartFailed"
