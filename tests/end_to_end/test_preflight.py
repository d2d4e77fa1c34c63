"""The check of the machines before the script, with real ranks of several workers."""

import os
from pathlib import Path

import pytest

from client_lib import Job, JobFailed
from client_lib.spec.states import Reason, State
from tests.end_to_end.conftest import LocalServer

pytestmark = pytest.mark.process

KILLED = """
import os, signal, sys, threading, time

def end():
    while "torch.distributed" not in sys.modules:
        time.sleep(0.01)
    dist = sys.modules["torch.distributed"]
    while not (hasattr(dist, "is_initialized") and dist.is_initialized()):
        time.sleep(0.0001)
    os.kill(os.getpid(), signal.SIGKILL)

if sys.orig_argv[-1].endswith("preflight.py") and os.environ["RANK"] == os.environ["GUILTY"]:
    threading.Thread(target=end, daemon=True).start()
"""


@pytest.mark.parametrize("guilty", [0, 2])
def test_a_worker_that_is_lost_in_it_is_named(
    own_server: LocalServer, tmp_path: Path, guilty: int
) -> None:
    (tmp_path / "sitecustomize.py").write_text(KILLED)
    script = tmp_path / "train.py"
    script.write_text("print('never')")
    variables = {"PYTHONPATH": os.fspath(tmp_path), "GUILTY": str(guilty)}
    job = Job(script=str(script), n_workers=3, preflight_check=True, env_variables=variables)
    job.submit()
    with pytest.raises(JobFailed):
        job.wait(timeout=100)
    info = job.info()
    assert (info.state, info.reason) == (State.FAILED, Reason.PREFLIGHT_FAILED)
    assert info.message == f"preflight of worker {guilty} was killed by signal 9"
    lines = [entry.text for entry in job.log_entries(follow=False)]
    assert not [line for line in lines if "Traceback" in line or line == "never"]
