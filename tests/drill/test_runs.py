"""The jobs of a drill."""

import shutil
from pathlib import Path

import pytest

from client_lib.client import Client
from client_lib.drill.folders import RunPlace, ground
from client_lib.drill.runs import Script, fields
from client_lib.job import Job
from client_lib.spec.job import JobSpec


@pytest.fixture
def place(tmp_path: Path) -> RunPlace:
    return RunPlace(tmp_path, tmp_path, "train.py", tmp_path / "checkpoints", tmp_path / "records")


def test_what_acts_on_others_is_left_out(place: RunPlace) -> None:
    client = Client()
    spec = JobSpec(
        script="train.py",
        name="mine",
        alarm=["nan -> retry", "loss > 10 -> notify"],
        notify="https://example.com/hook",
        after=["other"],
        max_retry=3,
        retry_on=["Hung"],
        retry_reset_steps=5,
        hang_action="retry",
        health_params={"log_period": 5, "action": "restart"},
        checkpoint_from="other",
        outputs=["*.csv"],
        labels={"team": "a"},
        smoke=True,
    )
    script = Script(client, spec, "python", "abc")
    found = Job(**fields(script, place, place.records, "a run"), client=client).spec
    quiet = JobSpec(script="train.py", outputs=[], max_infrastructure_retry=0)
    for name in (
        "name",
        "alarm",
        "notify",
        "after",
        "max_retry",
        "max_infrastructure_retry",
        "retry_on",
        "retry_reset_steps",
        "hang_action",
        "health_params",
        "checkpoint_from",
        "outputs",
        "smoke",
    ):
        assert getattr(found, name) == getattr(quiet, name), name
    assert found.labels == {"team": "a", "drill": "abc"}


def test_a_second_try_has_records_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    with ground(JobSpec(script="train.py"), "train.py") as at:
        first = at.place("kill")
        shutil.rmtree(first.folder)
        again = at.place("kill")
        shutil.rmtree(again.folder)
    assert again.records != first.records
    assert not at.base.exists()
