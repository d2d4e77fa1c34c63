"""The slow rank of a job whose ranks are those of several workers."""

from pathlib import Path

import pytest

from client_lib import Job, State
from tests.end_to_end.conftest import LocalServer

pytestmark = pytest.mark.process

SCRIPT = """
import sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
for step in range(60):
    time.sleep(0.07 if dist.get_rank() == int(sys.argv[1]) else 0.02)
    dist.all_reduce(torch.ones(1))
dist.destroy_process_group()
"""


@pytest.mark.parametrize("guilty", [1, 2])
def test_the_rank_that_is_late_is_named_among_two_workers(
    own_server: LocalServer, tmp_path: Path, guilty: int
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    job = Job(script=str(script), args=[str(guilty)], n_workers=2, processes_per_worker=2)
    job.submit()
    assert job.wait(timeout=100).state is State.SUCCEEDED
    progress = job.info().progress
    assert progress is not None
    assert progress.slow is not None
    assert progress.slow.startswith(f"rank {guilty} is slow: it enters collectives "), progress.slow
    assert job.goodput().lag_s > 40 * 0.05
