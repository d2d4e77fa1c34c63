"""The server dies, stays away, comes back; what the workers say meanwhile arrives
once, or is counted as lost.
"""

import json
import re
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest
import requests

from client_lib.launcher_protocol.record import METRICS, parse
from tests.kit.waiting import until
from tests.worker_gateway.conftest import Start
from tests.worker_gateway.pods_here import lives

pytestmark = pytest.mark.process

AWAY_S = 2.0
# prints until a file asks it to end, so that the outage is in its middle on any machine
UNTIL_TOLD = """
import os, time
n = 0
while not os.path.exists('enough'):
    for _ in range(50):
        print('line', n, 'x' * 80)
        n += 1
    time.sleep(0.005)
print('last', n)
"""


def texts(log: bytes) -> list[str]:
    """The lines of a stored log, without its metrics."""
    return [record.text for record in map(parse, log.splitlines()) if record.stream != METRICS]


def size_of(spool: Path) -> int:
    """Bytes of the spool's segments, some of which the agent removes meanwhile."""
    size = 0
    for segment in spool.iterdir():
        with suppress(FileNotFoundError):
            size += segment.stat().st_size
    return size


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGTERM])
def test_a_server_that_ends_in_the_middle_costs_no_line(site: Start, sig: signal.Signals) -> None:
    first = site()
    job = first.accepted("kill", UNTIL_TOLD, n_workers=2)
    first.running("kill")
    until(lambda: all(len(first.stored_log(job, worker)) > 100_000 for worker in (0, 1)))
    first.end(sig)
    time.sleep(AWAY_S)
    before = [len(first.stored_log(job, worker)) for worker in (0, 1)]
    second = site()
    second.facts()
    until(
        lambda: all(
            len(second.stored_log(job, worker)) > before[worker] + 100_000 for worker in (0, 1)
        )
    )
    (second.folder / "enough").touch()
    assert second.ended("kill")["state"] == "SUCCEEDED"
    for worker in (0, 1):
        lines = texts(second.stored_log(job, worker))
        count = int(lines[-1].split()[1])
        assert lines[:-1] == [f"line {n} {'x' * 80}" for n in range(count)]
    assert not any("missing" in line or "lost" in line for line in second.text("kill"))
    assert "the log waits for the server" in (second.pod(job) / "stderr").read_text()


@pytest.mark.long
@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGTERM])
def test_five_bursts_at_once_lose_nothing_while_the_server_is_away_for_half_a_minute(
    site: Start, sig: signal.Signals
) -> None:
    first = site()
    script = "for n in range(300_000): print(f'{n:07d}', 'x' * 92)"
    job = first.accepted("bursts", script, n_workers=5)
    until(lambda: len(first.stored_log(job, 4)) > 0)
    first.end(sig)
    time.sleep(30.0)
    second = site()
    assert second.ended("bursts", 200.0)["state"] == "SUCCEEDED"
    for worker in range(5):
        assert texts(second.stored_log(job, worker)) == [
            f"{n:07d} {'x' * 92}" for n in range(300_000)
        ]


def test_a_job_that_ends_while_the_server_is_away_waits_for_it(site: Start) -> None:
    first = site()
    script = (
        "import os, time\nprint('up')\nwhile not os.path.exists('enough'): "
        "time.sleep(0.01)\nprint('down')"
    )
    job = first.accepted("wait", script, n_workers=2)
    first.running("wait")
    first.kill()
    (first.folder / "enough").touch()
    until(
        lambda: all((first.pod(job, worker) / "run" / "report.json").exists() for worker in (0, 1))
    )
    second = site()
    ended = second.ended("wait")
    assert (ended["state"], [worker["exit_code"] for worker in ended["workers"]]) == (
        "SUCCEEDED",
        [0, 0],
    )
    assert texts(second.stored_log(job, 1)) == ["up", "down"]


def test_a_long_outage_while_the_ranks_run_does_not_shorten_the_wait_for_the_server(
    site: Start,
) -> None:
    first = site(pods={"leave_s": 20.0})
    script = (
        "import os, time\nprint('up')\nwhile not os.path.exists('enough'): "
        "time.sleep(0.01)\nprint('down')"
    )
    job = first.accepted("long", script)
    first.running("long")
    (first.state_dir / "data" / "pods.json").write_text('{"leave_s": 1.0}')
    short = first.accepted("short", script)
    first.running("short")
    first.kill()
    time.sleep(1.5)
    (first.folder / "enough").touch()
    until(lambda: not lives(first.pod(short)))
    assert time.time() - (first.pod(short) / "run" / "report.json").stat().st_mtime > 0.9
    assert json.loads((first.pod(short) / "termination-log").read_bytes())["reason"] == "Completed"
    assert lives(first.pod(job))
    second = site()
    assert second.ended("long")["state"] == "SUCCEEDED"
    assert texts(second.stored_log(job)) == ["up", "down"]


def test_an_ended_worker_leaves_soon_what_the_cluster_keeps_and_stays_with_all_else(
    site: Start,
) -> None:
    first = site(pods={"leave_s": 0.5})
    script = "import os, time\nprint('up')\nwhile not os.path.exists('enough'): time.sleep(0.01)\n"
    jobs = {
        name: first.accepted(name, script + last, n_workers=workers)
        for name, workers, last in (
            ("ends", 1, "print('down')"),
            ("fails", 1, "raise SystemExit(3)"),
            ("large", 1, "for n in range(70_000): print(n, 'x' * 40)"),
            ("gang", 2, "print('down')"),
        )
    }
    for name in jobs:
        first.running(name)
    first.kill()
    (first.folder / "enough").touch()

    left = [first.pod(jobs["ends"]), first.pod(jobs["fails"]), first.pod(jobs["gang"], 1)]
    kept = [first.pod(jobs["large"]), first.pod(jobs["gang"], 0)]
    until(lambda: not any(map(lives, left)))
    until(lambda: all((pod / "run" / "report.json").exists() for pod in kept))
    time.sleep(1.0)
    assert all(map(lives, kept))
    messages = [json.loads((pod / "termination-log").read_bytes()) for pod in left]
    assert [message["exit_code"] for message in messages] == [0, 3, 0]
    printed = [texts((pod / "stdout").read_bytes()) for pod in left]
    assert printed == [["up", "down"], ["up"], ["up", "down"]]
    second = site()
    assert second.ended("large")["state"] == "SUCCEEDED"
    assert len(texts(second.stored_log(jobs["large"]))) == 70_001


@pytest.mark.smoke
def test_a_server_that_dies_before_the_gate_opens_opens_it_later(site: Start) -> None:
    first = site(pods={"held": [1]})
    job = first.accepted("gate", "print('ran')", n_workers=2)
    facts = first.attempt(job) / "workers/0/worker.json"
    until(lambda: facts.exists() and json.loads(facts.read_text())["state"] == "ready")
    first.kill()
    second = site(pods={})
    assert second.ended("gate")["state"] == "SUCCEEDED"
    assert [texts(second.stored_log(job, worker)) for worker in (0, 1)] == [["ran"], ["ran"]]


def test_what_does_not_fit_into_the_spool_is_a_counted_gap(site: Start) -> None:
    first = site(pods={"spool_bytes": 2**20})
    script = (
        "import os, time\nprint('up', flush=True)\n"
        "while not os.path.exists('away'): time.sleep(0.01)\n"
        "for n in range(60_000):\n"
        "    print('line', n, 'x' * 80)\n"
        "    if n % 500 == 0: time.sleep(0.02)\n"
        "open('said', 'w').close()\n"
        "while not os.path.exists('enough'): time.sleep(0.01)\n"
        "print('down')"
    )
    job = first.accepted("full", script)
    until(lambda: b"up" in first.stored_log(job))
    first.kill()
    (first.folder / "away").touch()
    until(lambda: (first.folder / "said").exists())
    spool = first.pod(job) / "run" / "log"
    until(lambda: size_of(spool) <= 0.8 * 2**20)
    assert "the spool is full" in (first.pod(job) / "stderr").read_text()
    second = site()
    (second.folder / "enough").touch()
    assert second.ended("full")["state"] == "SUCCEEDED"
    seqs = [parse(line).seq for line in second.stored_log(job).splitlines()]
    missing = seqs[-1] + 1 - len(seqs)
    assert seqs == sorted(set(seqs))
    assert 0 < missing < 60_000
    assert texts(second.stored_log(job))[-2:] == [f"line 59999 {'x' * 80}", "down"]
    kept = json.loads((second.attempt(job) / "workers/0/worker.json").read_text())
    assert kept["missing"] == missing
    frames = second.call(
        "GET", "/api/v1/jobs/full/logs", headers={"Accept": "application/x-ndjson"}
    ).text
    told = [json.loads(line) for line in frames.splitlines() if '"gap"' in line]
    assert [(event["worker"], event["lines"]) for event in told] == [(0, missing)]


def test_the_log_of_a_job_over_its_limit_keeps_head_and_tail(site: Start) -> None:
    server = site(pods={"log_limit_bytes": 2**20})
    job = server.accepted("capped", "for n in range(60_000): print('line', n, 'x' * 80)")
    assert server.ended("capped")["state"] == "SUCCEEDED"
    lines = texts(server.stored_log(job))
    assert len(server.stored_log(job)) <= 2**20 + 2**19
    assert (lines[0], lines[-1]) == (f"line 0 {'x' * 80}", f"line 59999 {'x' * 80}")


def test_proxies_are_not_asked(site: Start, port: int) -> None:
    """Pods here have an http_proxy at which nothing listens: that any job ends shows it.
    And the rank still has it.
    """
    server = site()
    job = server.accepted("proxy", "import os; print(os.environ['http_proxy'])")
    assert server.ended("proxy")["state"] == "SUCCEEDED"
    assert texts(server.stored_log(job)) == ["http://127.0.0.1:9"]
    assert re.match(r"http://127\.0\.0\.1:\d+$", server.facts()["url"])
    assert requests.get(f"http://127.0.0.1:{port}/healthz", timeout=10).ok
