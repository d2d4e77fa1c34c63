"""The progress of a script that prints nothing."""

from pathlib import Path

import pytest

from client_lib import Job, State
from tests.end_to_end.conftest import LocalServer
from tests.kit.waiting import until

pytestmark = pytest.mark.process

SCRIPT = """
import time, torch
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=300)
for step in range(300):
    optimizer.zero_grad()
    model(torch.ones(8, 4)).square().mean().backward()
    optimizer.step()
    scheduler.step()
    time.sleep(0.02)
"""


def test_a_script_that_prints_nothing_shows_its_steps_and_the_time_left(
    own_server: LocalServer, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    job = Job(script=str(script))
    job.submit()

    def has_progress() -> bool:
        progress = job.info().progress
        return progress is not None and progress.left_s is not None

    until(has_progress, "the time left is known", 100)
    assert job.wait(timeout=100).state is State.SUCCEEDED
    metrics = job.metrics()
    steps = metrics["train/step"]
    assert steps.values[-1] == 300
    assert 0.02 < metrics["train/step_time"].values[-1] < 1
    assert metrics["optim/lr"].values[0] > metrics["optim/lr"].values[-1]
    assert job.goodput().steps_s > 4
