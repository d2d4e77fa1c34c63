"""The first thing everyone does: submit a script, follow it, wait; and what it says when the script fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from client_lib import Job, JobFailed, State, get_job, list_jobs
from tests.end_to_end.conftest import LocalServer

ALL_REDUCE = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
value = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(value)
print("sum", value.item(), "of", os.environ["WORLD_SIZE"], "local", os.environ["LOCAL_RANK"])
dist.destroy_process_group()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(ALL_REDUCE)
    return path


def test_two_workers_reduce_and_every_line_arrives(local_server: LocalServer, script: Path) -> None:
    job = Job(script=str(script), n_workers=2)
    assert job.submit() == f'Job "{job.job_name}" created.'
    assert job.wait(timeout=100).state is State.SUCCEEDED
    assert sorted(line for line in job.log_lines() if line.startswith("sum")) == ["sum 3.0 of 2 local 0"] * 2
    assert [event.state for event in job.events()][-1] is State.SUCCEEDED


def test_another_process_finds_the_job_by_name(local_server: LocalServer, script: Path) -> None:
    script.write_text("print('hello')")
    job = Job(script=str(script))
    job.submit()
    code = f"from client_lib import get_job; print(get_job({job.job_name!r}).wait().state)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert found.stdout.strip() == "SUCCEEDED", found.stderr
    assert [info.name for info in list_jobs()] == [job.job_name]


def test_another_state_directory_is_another_server(
    local_server: LocalServer, script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script.write_text("print('hello')")
    job = Job(script=str(script))
    job.submit()
    monkeypatch.setenv("CLIENT_LIB_STATE_DIR", str(tmp_path / "other"))
    try:
        assert list(list_jobs()) == []
        assert job.wait(timeout=60).state is State.SUCCEEDED  # a job stays with its server
    finally:
        LocalServer(tmp_path / "other").kill()


def test_a_failed_job_names_the_first_failing_rank_and_its_exception(local_server: LocalServer, script: Path) -> None:
    script.write_text(
        "import os, time\nif os.environ['RANK'] == '1':\n    raise KeyError('learning_rate')\ntime.sleep(60)\n"
    )
    job = Job(script=str(script), n_workers=2, grace_s=1)
    job.submit()
    with pytest.raises(JobFailed) as failed:
        job.wait(timeout=60)
    assert failed.value.info.failure.rank == 1
    assert failed.value.info.failure.exit_code == 1
    assert "KeyError: 'learning_rate'" in failed.value.message
    assert get_job(job.job_name or "").state is State.FAILED


def test_nothing_of_the_callers_process_is_changed(local_server: LocalServer, script: Path) -> None:
    script.write_text("print('hello')")
    before = (os.getcwd(), dict(os.environ))
    Job(script=str(script)).submit()
    assert (os.getcwd(), dict(os.environ)) == before
