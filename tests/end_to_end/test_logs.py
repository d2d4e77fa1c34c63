"""What a follower sees of real workers' lines."""

import io
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from client_lib import Job, State
from tests.end_to_end.conftest import LocalServer

pytestmark = pytest.mark.process

MEET_AND_WAIT = """
import os, time
from pathlib import Path
Path("here-" + os.environ["RANK"]).touch()
while not all(Path(f"here-{rank}").exists() for rank in range(2)):
    time.sleep(0.001)
print("ready")
while not Path("go").exists():
    time.sleep(0.01)
"""


@pytest.mark.smoke
def test_identical_lines_of_two_ranks_are_one_live_and_afterwards(
    own_server: LocalServer, tmp_path: Path
) -> None:
    script, seen = tmp_path / "train.py", io.StringIO()
    script.write_text(MEET_AND_WAIT)
    job = Job(script=str(script), n_workers=2, working_dir=str(tmp_path))
    job.submit()
    with ThreadPoolExecutor() as pool:
        following = pool.submit(job.logs, collapse=True, file=seen)
        deadline = time.monotonic() + 30
        while seen.getvalue() != "[0-1] ready\n" and time.monotonic() < deadline:
            time.sleep(0.01)
        live = seen.getvalue()  # nothing follows it yet
        (tmp_path / "go").touch()
        following.result()
    assert (live, seen.getvalue()) == ("[0-1] ready\n", "[0-1] ready\n")
    assert job.wait(timeout=30).state is State.SUCCEEDED
    logs = [sys.executable, "-m", "client_lib", "logs", "--collapse", str(job.name)]
    assert (
        subprocess.run(logs, capture_output=True, text=True, check=True, timeout=30).stdout
        == "[0-1] ready\n"
    )


TRAIN_LOG = """
import os, time
from pathlib import Path
log = Path(__file__).with_name("train.log")
with log.open("a") as out:
    for step in range(3):
        print("rank", os.environ["RANK"], "step", step, file=out, flush=True)
        time.sleep(0.1)
"""


def test_each_workers_own_train_log_of_a_snapshot_arrives_once(
    own_server: LocalServer, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN_LOG)
    job = Job(script=str(script), n_workers=2, code="snapshot")
    job.submit()
    followed = [entry for entry in job.log_entries() if entry.stream == "train.log"]
    lines = sorted((entry.worker, entry.text) for entry in followed)
    assert lines == [
        (worker, f"rank {worker} step {step}") for worker in range(2) for step in range(3)
    ]
    assert {entry.rank for entry in followed} == {None}
    assert job.wait(timeout=30).state is State.SUCCEEDED
    printed = io.StringIO()
    job.logs(file=printed)
    assert sorted(printed.getvalue().splitlines()) == sorted(
        f"[train.log{' 1' if worker else ''}] {text}" for worker, text in lines
    )
    assert not (tmp_path / "train.log").exists()
