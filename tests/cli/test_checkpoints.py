"""`client-lib checkpoints` of a real job that is killed while it saves, and resumes."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from client_lib.worker.checkpoint_values import FILE
from tests.cli.conftest import Run

pytestmark = pytest.mark.process

PRUNE = ("prune", "NAME", "--checkpoints", "--keep", "3")
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


SAVES_AND_EVALUATES = """
import os, time, torch
folder = os.environ["CLIENT_LIB_CHECKPOINT_DIR"]
for step, acc in ((1, 0.5), (2, 0.9), (3, 0.8)):
    print(f"step {step} eval/acc={acc}", flush=True)
    time.sleep(0.3)
    torch.save({"step": step}, f"{folder}/step-{step}.pt")
    os.mkdir(f"{folder}/checkpoint-{step}")
    torch.save({"step": step}, f"{folder}/checkpoint-{step}/pytorch_model.bin")
    open(f"{folder}/checkpoint-{step}/config.json", "w").write("{}")
"""


def submit_evaluated(cli: Run, folder: Path, name: str, *options: str) -> str:
    """An ended job with checkpoints of three steps, the second of which is the best."""
    (folder / "evaluates.py").write_text(SAVES_AND_EVALUATES)
    done = cli("submit", "-f", "--name", name, *options, str(folder / "evaluates.py"))
    assert done.returncode == 0, done.stderr
    return name


@pytest.fixture
def evaluated(cli: Run, tmp_path: Path) -> str:
    """Such a job, which several tests read."""
    name = f"evaluated-{os.getpid()}"
    if cli("status", name).returncode == 0:
        return name
    return submit_evaluated(cli, tmp_path, name)


@pytest.mark.parametrize(
    ("which", "steps"),
    [("last", [3]), ("best:eval/acc", [2]), ("1", [1]), ("best:min:eval/acc", [1])],
)
def test_a_checkpoint_is_downloaded(
    cli: Run, tmp_path: Path, evaluated: str, which: str, steps: list[int]
) -> None:
    done = cli("download", evaluated, str(tmp_path / "here"), "--checkpoint", which)
    assert done.returncode == 0, done.stderr
    names = {path.name for path in (tmp_path / "here").iterdir()}
    assert names == {name for step in steps for name in (f"step-{step}.pt", f"checkpoint-{step}")}
    assert (tmp_path / "here" / f"checkpoint-{steps[0]}" / "pytorch_model.bin").exists()
    again = cli("download", evaluated, str(tmp_path / "here"), "--checkpoint", which)
    assert again.returncode != 0
    assert "is there already" in again.stderr


def test_early_checkpoints_are_shown_and_removed(cli: Run, tmp_path: Path) -> None:
    name = submit_evaluated(cli, tmp_path, "pruned")
    prune = ("prune", name, "--checkpoints", "--keep", "1")
    shown = cli(*prune, "--dry-run")
    assert [line.split()[0] for line in shown.stdout.splitlines()] == ["STEP", "1", "1", "2", "2"]
    refused = cli(*prune)
    assert refused.returncode != 0
    assert "remove 4 checkpoints" in refused.stderr
    assert "--yes" in refused.stderr
    assert len(json.loads(cli("checkpoints", name, "-o", "json").stdout)) == 6
    done = cli(*prune, "--yes")
    assert done.returncode == 0, done.stderr
    assert "removed 4 checkpoints" in done.stderr
    left = json.loads(cli("checkpoints", name, "-o", "json").stdout)
    assert {each["step"] for each in left} == {3}
    assert "no earlier checkpoints to remove" in cli(*prune).stderr


def test_without_the_values_of_its_metric_none_is_removed(cli: Run, tmp_path: Path) -> None:
    params = ("--checkpoint-params", "keep=3,keep_best=eval/acc")
    name = submit_evaluated(cli, tmp_path, "best-unknown", *params)
    found = json.loads(cli("checkpoints", name, "-o", "json").stdout)
    (Path(found[0]["path"]).parent / FILE).unlink()
    done = cli("prune", name, "--checkpoints", "--keep", "1", "--yes")
    assert done.stderr.count("the eval/acc at its step is not known, so it may be the best") == 4
    assert len(json.loads(cli("checkpoints", name, "-o", "json").stdout)) == 6


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["download", "NAME", "--checkpoint", "best"], "name the metric: best:val_loss"),
        (["download", "NAME", "--checkpoint", "best:acc"], "it has eval/acc"),
        (["download", "NAME", "--checkpoint", "7"], "there are: 1, 2, 3"),
        (["download", "NAME", "--checkpoint", "newest"], "best, best:METRIC, last or a step"),
        (["download", "NAME", "--checkpoint", "last", "--list"], "--checkpoint stands alone"),
        (["prune", "NAME"], "belong together"),
        (["prune", "--keep", "3"], "belong together"),
        (["prune", "--checkpoints", "--keep", "3"], "belong together"),
        ([*PRUNE, "--older", "7d"], "--older and --state choose jobs, not checkpoints"),
        ([*PRUNE, "--state", "FAILED"], "--older and --state choose jobs, not checkpoints"),
    ],
)
def test_a_wrong_line_is_refused_with_the_way_out(
    cli: Run, evaluated: str, words: list[str], told: str
) -> None:
    done = cli(*(word.replace("NAME", evaluated) for word in words))
    assert done.returncode != 0
    assert told in " ".join(done.stderr.split())
