"""A real server that is killed and started again under a follower."""

import random
import threading
import time
from pathlib import Path

import pytest

from client_lib.log_reading.reader import log_lines, log_params
from tests.kit.waiting import until
from tests.logs.log_server import write_job
from tests.logs.support import LogWriter, ServerProcess, opener

LINES = 3000


@pytest.mark.parametrize(
    "rounds", [2, pytest.param(20, marks=[pytest.mark.long, pytest.mark.timeout(600)])]
)
def test_a_killed_server_loses_and_repeats_no_line(
    server_process: ServerProcess, writer: LogWriter, tmp_path: Path, rounds: int
) -> None:
    server_process.start()
    got: list[str] = []
    follow = log_params(follow=True)
    follower = threading.Thread(
        target=lambda: got.extend(log_lines(opener(server_process.url), follow))
    )
    follower.start()
    stop = threading.Event()
    written: list[str] = []

    def write() -> None:
        while not stop.is_set():
            lines = [f"line {len(written) + number}" for number in range(random.randint(1, 50))]
            writer.append([writer.record(line) for line in lines])
            written.extend(lines)
            # enough lines for any moment, and not so many that a busy machine falls behind
            time.sleep(0.01)

    author = threading.Thread(target=write)
    author.start()
    for _ in range(rounds):
        before = len(got)
        until(lambda before=before: len(got) > before)  # it pauses between two tries, up to seconds
        time.sleep(random.uniform(0.0, 0.3))  # any moment is as good
        server_process.kill()
        server_process.start()
    stop.set()
    author.join()
    write_job(tmp_path, state="SUCCEEDED", reason="Completed")
    follower.join(timeout=60)
    assert got == written
