"""The server is killed and another one goes on: what waits starts once, what ran is found again."""

import signal
import sqlite3
from pathlib import Path

import pytest

from client_lib.spec import paths
from tests.faults.conftest import Start
from tests.kit.waiting import until

pytestmark = pytest.mark.process

ONCE = """
import os, sys
with open(sys.argv[1], "a") as starts:
    starts.write(os.environ["CLIENT_LIB_JOB_NAME"] + "\\n")
print("done", flush=True)
"""
WAITS = (
    "import os, sys, time\nprint('up', flush=True)\nwhile not os.path.exists(sys.argv[1]): "
    "time.sleep(0.02)\n"
)


def test_a_job_that_was_accepted_and_not_started_starts_once(start: Start, tmp_path: Path) -> None:
    starts, stop = tmp_path / "starts", tmp_path / "stop"
    starts.touch()
    one_at_a_time = {"CLIENT_LIB_SERVER_MAX_CPU_JOBS": "1"}
    first = start(**one_at_a_time)
    first.accepted("first", WAITS, args=[str(stop)])
    first.running("first")
    for name in ("second", "third"):
        first.accepted(name, ONCE, args=[str(starts)])
    waiting = first.until("third", lambda job: "2nd of 2" in job["message"])
    assert waiting["message"] == "2nd of 2; waits for its turn: jobs without GPUs run 1 at a time"
    first.end(signal.SIGKILL)
    second = start(**one_at_a_time)
    assert second.job("third")["state"] == "PENDING"
    stop.touch()
    assert [second.ended(name)["state"] for name in ("first", "second", "third")] == [
        "SUCCEEDED"
    ] * 3
    assert starts.read_text().split() == ["second", "third"]


@pytest.mark.smoke
def test_a_job_that_ended_while_no_server_ran_has_its_log_and_exit_code(
    start: Start, tmp_path: Path
) -> None:
    stop = tmp_path / "stop"
    first = start()
    script = WAITS + "print('all', 'of', 'it', flush=True)\nsys.exit(7)\n"
    first.accepted("ends", script, args=[str(stop)])
    first.running("ends")
    first.end(signal.SIGKILL)
    stop.touch()
    until(lambda: list(tmp_path.glob("state/data/jobs/*/attempts/1/workers/0/report.json")))
    second = start()
    ended = second.ended("ends")
    assert (ended["state"], ended["failure"]["exit_code"]) == ("FAILED", 7)
    assert second.lines("ends") == ["up", "all of it"]


@pytest.mark.parametrize("retries", [3, 0])
def test_after_a_reboot_jobs_that_ran_start_again_or_have_failed_and_those_that_waited_run(
    start: Start, tmp_path: Path, retries: int
) -> None:
    stop = tmp_path / "stop"
    first = start(CLIENT_LIB_SERVER_MAX_CPU_JOBS="1")
    first.accepted("ran", WAITS, args=[str(stop)], max_infrastructure_retry=retries)
    first.running("ran")
    first.accepted("waited", "print('hello')")
    first.end(signal.SIGKILL)
    records = list(tmp_path.glob("state/data/jobs/*/attempts/1/attempt.json"))
    assert len(records) == 1
    boot_id = Path("/proc/sys/kernel/random/boot_id")
    if not boot_id.exists():
        pytest.skip("this system has no boot id to stand in for another")
    records[0].write_text(
        records[0].read_text().replace(boot_id.read_text().strip(), "of-the-last-boot")
    )
    second = start(CLIENT_LIB_SERVER_MAX_CPU_JOBS="1")
    why = "the machine was rebooted while the job ran"
    second.until("ran", lambda job: why in job["message"])
    stop.touch()
    lost = second.ended("ran")
    if retries:
        assert (lost["state"], lost["attempt"], lost["infrastructure_retries"]) == (
            "SUCCEEDED",
            2,
            1,
        )
        told = [
            event["message"] for event in second.get(paths.job("ran", "events")).json()["events"]
        ]
        assert (
            f"attempt 1 failed: {why} (1 of 3 infrastructure retries); the next starts in 1 s"
            in told
        )
    else:
        assert (lost["state"], lost["reason"], lost["message"]) == ("FAILED", "NodeLost", why)
    assert second.ended("waited")["state"] == "SUCCEEDED"


def test_max_retry_pauses_and_keeps_the_log_of_each_attempt(start: Start) -> None:
    server = start()
    script = (
        "import os, sys\nnumber = os.environ['CLIENT_LIB_ATTEMPT']\nprint('attempt', number, "
        "flush=True)\n"
    )
    script += (
        "print(os.environ['CLIENT_LIB_CHECKPOINT_DIR'], flush=True)\nsys.exit(number != '3')\n"
    )
    server.accepted("tries", script, max_retry=5)
    assert server.ended("tries")["attempt"] == 3
    said = server.lines("tries")
    assert said[::2] == ["attempt 1", "attempt 2", "attempt 3"]
    assert len(set(said[1::2])) == 1
    assert (
        server.call("GET", f"{paths.job('tries', 'logs')}?attempt=2&rank=0").text.splitlines()[0]
        == "attempt 2"
    )
    events = server.get(paths.job("tries", "events")).json()["events"]
    pauses = [
        event["message"].rpartition("starts in ")[2]
        for event in events
        if event["state"] == "RESTARTING"
    ]
    assert pauses[0].startswith("1 s")
    assert "2 s" in pauses


def test_two_jobs_at_once_have_two_master_ports_outside_the_ephemeral_range(
    start: Start, tmp_path: Path
) -> None:
    server = start()
    stop = tmp_path / "stop"
    script = (
        "import os\nprint(os.environ['MASTER_ADDR'], os.environ['MASTER_PORT'], flush=True)\n"
        + WAITS
    )
    for name in ("one", "two"):
        server.accepted(name, script, args=[str(stop)])
    for name in ("one", "two"):
        until(lambda: len(server.lines(name)) == 2)  # noqa: B023  # called before the next name
    stop.touch()
    said = [server.lines(name)[0].split() for name in ("one", "two")]
    assert {host for host, _ in said} == {"127.0.0.1"}
    assert len({port for _, port in said}) == 2


def test_the_database_of_a_newer_version_is_left_alone(start: Start, tmp_path: Path) -> None:
    first = start()
    first.facts()
    first.end()
    file = tmp_path / "state" / "data" / "client_lib.db"
    with sqlite3.connect(file) as database:
        database.execute("UPDATE alembic_version SET version_num = '9999'")
    database.close()
    before = file.read_bytes()
    assert "is newer than this version knows" in start().refused()
    assert file.read_bytes() == before
