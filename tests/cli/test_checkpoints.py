"""`client-lib checkpoints` of a real job that is killed while it saves, and resumes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run

pytestmark = pytest.mark.process

KILLED_WHILE_IT_SAVES = """
import os, signal, torch
folder = os.environ["CLIENT_LIB_CHECKPOINT_DIR"]
saved = sorted(name for name in os.listdir(folder) if name.endswith(".pt"))
if saved:
    print("resumed from step", torch.load(f"{folder}/{saved[-1]}")["step"])
else:
    for step in (1, 2):
        torch.save({"step": step, "weight": torch.zeros(2000)}, f"{folder}/step-{step}.pt")
    os.truncate(f"{folder}/step-2.pt", 5000)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def _shared_server(environment: dict[str, str], local_server: Path, commands_here: None) -> None:
    """Commands use the local server of all tests, from an environment that has torch."""
    environment["CLIENT_LIB_STATE_DIR"] = str(local_server)
    environment["VIRTUAL_ENV"] = sys.prefix


def test_a_job_that_was_killed_while_it_saved_resumes(cli: Run, tmp_path: Path) -> None:
    script = tmp_path / "half_save.py"
    script.write_text(KILLED_WHILE_IT_SAVES)
    done = cli("submit", "-f", "--name", "half-save", "--max-retry", "1", str(script))
    assert done.returncode == 0, done.stderr
    assert "resumed from step 1" in done.stdout
    events = cli("status", "half-save", "--events").stdout
    assert "step-2.pt is damaged: cut off: 5000 bytes" in events
    assert "the one before it is step-1.pt of step 1" in events
    heading, row = cli("checkpoints", "half-save").stdout.splitlines()
    assert heading.split() == ["STEP", "STATE", "FORMAT", "SIZE", "AGE", "ATTEMPT", "PATH"]
    step, state, *_, attempt, path = row.split()
    assert (step, state, attempt) == ("1", "complete", "1")
    assert Path(path).name == "step-1.pt"
    (found,) = json.loads(cli("checkpoints", "half-save", "-o", "json").stdout)
    assert found["size"] == Path(path).stat().st_size


def test_a_job_without_any_says_so(cli: Run, tmp_path: Path) -> None:
    (tmp_path / "none.py").write_text("print(1)")
    cli("submit", "-f", "--name", "saves-nothing", str(tmp_path / "none.py"))
    done = cli("checkpoints", "saves-nothing")
    assert (done.returncode, done.stdout) == (0, "")
    assert "no checkpoints were recognised" in done.stderr
    assert cli("checkpoints", "saves-nothing", "-o", "json").stdout == "[]\n"
