"""What a follower sees of real workers' lines."""

from __future__ import annotations

import io
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from client_lib import Job, State
from tests.end_to_end.conftest import LocalServer

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


def test_identical_lines_of_two_ranks_are_one_live_and_afterwards(local_server: LocalServer, tmp_path: Path) -> None:
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
    assert subprocess.run(logs, capture_output=True, text=True, check=True, timeout=30).stdout == "[0-1] ready\n"
