"""Running real jobs again, on a real server."""

import logging
from pathlib import Path

import pytest

from client_lib import Job, resubmit
from client_lib.client import Client
from client_lib.errors import Conflict, InvalidRequest

PATIENCE_S = 60.0

SCRIPT = """
import os, sys
path = os.path.join(os.environ["CLIENT_LIB_CHECKPOINT_DIR"], "step")
step = int(open(path).read()) if os.path.exists(path) else 0
open(path, "w").write(str(step + 1))
print("step", step, "of", os.environ["WORLD_SIZE"], "version 1")
"""


def first(folder: Path, code: str) -> Job:
    (folder / "train.py").write_text(SCRIPT)
    job = Job(script="train.py", code=code, log_file=None)  # type: ignore[arg-type]
    job.submit()
    job.wait(PATIENCE_S)
    assert list(job.log_lines()) == ["step 0 of 1 version 1"]
    (folder / "train.py").write_text(SCRIPT.replace("version 1", "version 2"))
    return job


def test_the_same_snapshot_runs_with_other_values_and_a_copy_of_the_checkpoints(
    folder: Path, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "client_lib")
    job = first(folder, "snapshot")
    again = [
        resubmit(job, processes_per_worker=1, labels={"try": str(number)}) for number in (2, 3)
    ]
    for one in again:
        one.wait(PATIENCE_S)
        assert list(one.log_lines()) == ["step 1 of 1 version 1"]
        assert one.info().code == job.info().code
    assert "processes_per_worker: default -> 1" in caplog.text
    assert (f"the same code: snapshot {job.info().code.sha256[:12]} of {folder}") in caplog.text  # type: ignore[index]
    assert f"checkpoint_dir: a copy of what {job.name} has left there" in caplog.text
    last = client.resubmit(str(again[0].name))
    last.wait(PATIENCE_S)
    assert list(last.log_lines()) == ["step 2 of 1 version 1"]


def test_other_arguments_start_without_the_checkpoints_unless_resume(
    folder: Path, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    job = first(folder, "snapshot")
    fresh = resubmit(job, args=["--lr", "0.5"])
    fresh.wait(PATIENCE_S)
    assert list(fresh.log_lines()) == ["step 0 of 1 version 1"]
    assert f"starts fresh, without the checkpoints of {job.name}: args differ" in caplog.text
    resumed = client.resubmit(str(job.name), resume=True, env_variables={"LR": "0.5"})
    resumed.wait(PATIENCE_S)
    assert list(resumed.log_lines()) == ["step 1 of 1 version 1"]
    unchanged = resubmit(job, resume=False)
    unchanged.wait(PATIENCE_S)
    assert list(unchanged.log_lines()) == ["step 0 of 1 version 1"]


def test_in_place_todays_code_runs_and_that_is_said(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "client_lib")
    job = first(folder, "in_place")
    again = resubmit(job)
    again.wait(PATIENCE_S)
    assert list(again.log_lines()) == ["step 0 of 1 version 2"]
    assert "the code runs in place, and the script was changed since: today's runs" in caplog.text
    assert "starts fresh" in caplog.text
    assert again.info().notices == []
    resumed = resubmit(job, resume=True)
    resumed.wait(PATIENCE_S)
    assert list(resumed.log_lines()) == ["step 1 of 1 version 2"]


def test_a_job_that_still_runs_can_not_be_resumed(folder: Path) -> None:
    (folder / "train.py").write_text("import time; time.sleep(600)")
    job = Job(script="train.py", log_file=None)
    job.submit()
    try:
        with pytest.raises(InvalidRequest, match="has not ended, and still writes its checkpoints"):
            resubmit(job, resume=True)
    finally:
        job.cancel()


def test_a_job_follows_another_with_its_checkpoints_and_again_after_a_third(
    folder: Path, client: Client
) -> None:
    (folder / "train.py").write_text(SCRIPT)
    before = Job(script="train.py", code="snapshot", log_file=None)
    before.submit()
    second = Job(
        script="train.py", code="snapshot", log_file=None, after=[before], checkpoint_from=before
    )
    second.submit()
    assert second.spec.after == [before.name]
    second.wait(PATIENCE_S)
    assert list(second.log_lines()) == ["step 1 of 1 version 1"]
    third = resubmit(
        second, after=[second, f"any:{before.name}"], checkpoint_from=second, resume=False
    )
    third.wait(PATIENCE_S)
    assert third.spec.after == [second.name, f"any:{before.name}"]
    assert list(third.log_lines()) == ["step 2 of 1 version 1"]
    unsent = Job(script="train.py")
    with pytest.raises(Conflict):
        resubmit(second, after=[unsent])
