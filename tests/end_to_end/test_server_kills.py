"""kill -9 of the server at random moments while jobs are submitted and followed: nothing
is lost, nothing doubled.
"""

import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from client_lib import Client, Job, State, list_jobs
from tests.end_to_end.conftest import LocalServer

pytestmark = pytest.mark.process

LINES = 60
SCRIPT = f"""
import os, pathlib, sys, time
starts = pathlib.Path(sys.argv[1])
with open(starts / os.environ["CLIENT_LIB_JOB_NAME"], "a") as file:
    file.write(os.environ["RANK"] + "\\n")
for i in range({LINES}):
    print("rank", os.environ["RANK"], "line", i, flush=True)
    time.sleep(0.01)
"""


def run_and_follow(
    script: Path, starts: Path, number: int, client: Client
) -> tuple[str, list[str]]:
    job = Job(
        script=str(script),
        args=[str(starts)],
        name=f"job-{number}",
        n_workers=2,
        type="nogpu",
        client=client,
    )
    job.submit()
    return f"job-{number}", list(job.log_lines(follow=True, stream="stdout"))


def kill_at_random(server: LocalServer, times: int, done: threading.Event, seed: int) -> int:
    """How often it did; ends early when `done`."""
    moments, kills = random.Random(seed), 0
    while kills < times and not done.wait(moments.uniform(0.05, 1.5)):
        kills += server.kill()
    return kills


def soak(server: LocalServer, folder: Path, kills: int, seed: int) -> None:
    """Submit and follow jobs, four at a time, until the server was killed `kills` times;
    then look at all of them.
    """
    script, starts = folder / "count.py", folder / "starts"
    script.write_text(SCRIPT)
    starts.mkdir()
    client = Client(retry_s=60)
    enough, stop = threading.Event(), threading.Event()
    results: dict[str, list[str]] = {}
    numbers = iter(range(10**6))
    lock = threading.Lock()

    def submit_until_enough() -> None:
        while not enough.is_set():
            with lock:
                number = next(numbers)
            name, lines = run_and_follow(script, starts, number, client)
            results[name] = lines

    with ThreadPoolExecutor(5) as pool:
        killer = pool.submit(kill_at_random, server, kills, stop, seed)
        followers = [pool.submit(submit_until_enough) for _ in range(4)]
        killer.add_done_callback(lambda _: enough.set())
        try:
            for follower in followers:
                follower.result()
        finally:  # a server that doesn't come back is a failure, and no endless hunt for it
            stop.set()
        assert killer.result() == kills

    expected = sorted(f"rank {rank} line {i}" for rank in range(2) for i in range(LINES))
    wrong = {name: lines for name, lines in results.items() if sorted(lines) != expected}
    assert not wrong, f"seed {seed}"
    for name in results:
        assert sorted((starts / name).read_text().split()) == ["0", "1"], (
            f"{name} started twice, seed {seed}"
        )
    states = {job.name: job.state for job in list_jobs(client=client)}
    assert states == dict.fromkeys(results, State.SUCCEEDED), f"seed {seed}"


def test_a_few_kills_lose_and_double_nothing(own_server: LocalServer, tmp_path: Path) -> None:
    soak(
        own_server, tmp_path, kills=6, seed=int(os.environ.get("SOAK_SEED", time.time_ns() % 10**6))
    )


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_fifty_kills_lose_and_double_nothing(own_server: LocalServer, tmp_path: Path) -> None:
    soak(
        own_server,
        tmp_path,
        kills=50,
        seed=int(os.environ.get("SOAK_SEED", time.time_ns() % 10**6)),
    )
