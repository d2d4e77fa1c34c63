"""Real jobs with rules about their metrics: one that is stopped, and one that starts again from the
checkpoint before the alarm.
"""

from pathlib import Path

import pytest

from client_lib import Job, State
from client_lib.errors import JobFailed
from client_lib.spec.states import Reason
from tests.end_to_end.conftest import LocalServer

pytestmark = pytest.mark.process

DIVERGES = """
import os, time
for step in range(1, 4001):  # the alarm ends it
    lost = os.environ["RANK"] == "1" and step >= 20
    print(f"step {step}/4000 loss={float('nan') if lost else 1 / step}", flush=True)
    time.sleep(0.05)
"""

RESUMES = """
import json, os, struct, time
from pathlib import Path

folder = Path(os.environ["CLIENT_LIB_CHECKPOINT_DIR"])
spoiled = Path(__file__).with_name("spoiled")
is_second = spoiled.exists()
spoiled.touch()

def save(step):
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    content = struct.pack("<Q", len(header)) + header + bytes(4)
    (folder / f"step-{step}.safetensors").write_bytes(content)

saved = sorted(int(path.stem.split("-")[1]) for path in folder.glob("step-*"))
print("resumes from", saved[-1] if saved else 0, flush=True)
for step in range(saved[-1] + 1 if saved else 1, 61 if is_second else 4001):
    bad = not is_second and step >= 35
    print(f"step {step} loss={50.0 if bad else 1.0}", flush=True)
    if step % 10 == 0:
        save(step)
    time.sleep(0.05)
"""


def test_a_nan_on_one_rank_stops_the_job(own_server: LocalServer, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(DIVERGES)
    job = Job(script=str(script), processes_per_worker=2, alarm="nan -> stop")
    job.submit()
    with pytest.raises(JobFailed, match="loss was NaN on rank 1 from step 20"):
        job.wait(timeout=60)
    info = job.info()
    assert (info.state, info.reason) == (State.FAILED, Reason.ALARM)
    assert info.message == "alarm `nan -> stop`: loss was NaN on rank 1 from step 20"
    assert "alarm" in [each.code for each in info.attention]


def test_a_loss_that_is_too_high_starts_again_from_the_checkpoint_before(
    own_server: LocalServer, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(RESUMES)
    rule = "loss > 10 for 10 steps -> retry"
    job = Job(script=str(script), alarm=[rule], max_retry=1, processes_per_worker=1)
    job.submit()
    info = job.wait(timeout=60)
    assert (info.state, info.attempt) == (State.SUCCEEDED, 2)
    assert info.last_good
    assert info.last_good.step == 34.0
    lines = list(job.log_lines(follow=False))
    assert [line for line in lines if "resumes from" in line][-1].endswith("resumes from 30")
    told = [event.message for event in job.events()]
    assert any(message.endswith("from the newest checkpoint before step 34") for message in told)
    (moved,) = [message for message in told if "were moved to" in message]
    assert moved.endswith("the newest one left is step-30.safetensors of step 30")
