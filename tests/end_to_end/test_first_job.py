"""The first thing everyone does: submit a script, follow it, wait; and what it
says when the script fails.
"""

from pathlib import Path

import pytest

from client_lib import Job, State, list_jobs
from tests.end_to_end.conftest import LocalServer

pytestmark = pytest.mark.process

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


@pytest.mark.smoke
def test_two_workers_reduce_and_every_line_arrives(own_server: LocalServer, script: Path) -> None:
    job = Job(script=str(script), n_workers=2)
    assert job.submit() == f'Job "{job.job_name}" created.'
    assert job.wait(timeout=100).state is State.SUCCEEDED
    assert (
        sorted(line for line in job.log_lines() if line.startswith("sum"))
        == ["sum 3.0 of 2 local 0"] * 2
    )
    assert [event.state for event in job.events()][-1] is State.SUCCEEDED


def test_another_state_directory_is_another_server(
    own_server: LocalServer, script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
