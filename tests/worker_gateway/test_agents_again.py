"""Real agents of an elastic job that die, and those that come in their place;
torchrun's own part is not here.
"""

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from client_lib.launcher_protocol.record import Record, parse
from tests.kit.processes import kill_processes_of
from tests.kit.waiting import until
from tests.worker_gateway.conftest import Site, Start
from tests.worker_gateway.pods_here import lives, start_pod

pytestmark = pytest.mark.process

# the interpreter of the image: in the place of torchrun's agent it runs what that would start, once
AGENT = """#!/bin/sh
while case "$1" in *rank_runner.py) false;; *) true;; esac; do shift; done
exec {python} "$@"
"""
COUNTS = """
import os, time
print("begun", os.getpid())
n = 0
while not os.path.exists("enough"):
    print("line", n, flush=True)
    n += 1
    time.sleep(0.01)
"""


@pytest.fixture
def gateway(site: Start, tmp_path: Path) -> Site:
    (tmp_path / "agent").write_text(AGENT.format(python=sys.executable))
    (tmp_path / "agent").chmod(0o755)
    return site(pods={"python": str(tmp_path / "agent")})


def submitted(gateway: Site, **fields: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "type": "pytorch_elastic",
        "n_workers": 2,
        "elastic_min_workers": 1,
        "grace_s": 1,
    } | fields
    job = gateway.accepted("elastic", COUNTS, **given)
    until(lambda: all(begun(gateway, job, worker) == 1 for worker in (0, 1)))
    return job


def records(gateway: Site, job: dict[str, Any], worker: int) -> list[Record]:
    """Whole ones: the last may be about to be written."""
    return [parse(line) for line in gateway.stored_log(job, worker).split(b"\n")[:-1]]


def texts(gateway: Site, job: dict[str, Any], worker: int) -> list[str]:
    return [record.text for record in records(gateway, job, worker)]


def begun(gateway: Site, job: dict[str, Any], worker: int) -> int:
    return sum(text.startswith("begun") for text in texts(gateway, job, worker))


def kill(root: Path) -> None:
    """All that is in its container."""
    kill_processes_of(root)
    until(lambda: not lives(root))


def start(gateway: Site, root: Path, uid: str, worker: int = 1) -> None:
    start_pod(gateway.state_dir / "data" / "worker.pyz", root, uid, worker, 2)


def another(root: Path, name: str) -> Path:
    """A pod that the operator has made in the place of this one: of what
    that wrote it has nothing.
    """
    made = root.with_name(name)
    for folder in ("plan", "secret"):
        shutil.copytree(root / folder, made / folder)
    (made / "run").mkdir()
    return made


def assert_whole(gateway: Site, job: dict[str, Any], worker: int) -> None:
    numbers = [record.seq for record in records(gateway, job, worker)]
    assert numbers == list(range(len(numbers)))


@pytest.mark.smoke
def test_a_container_that_is_started_again_goes_on_with_its_log_and_loses_no_line(
    gateway: Site,
) -> None:
    job = submitted(gateway)
    root, uid = gateway.pod(job, 1), f"{job['id']}-1"
    kill(root)
    before = records(gateway, job, 1)[-1].seq
    start(gateway, root, uid)
    until(lambda: begun(gateway, job, 1) == 2 and texts(gateway, job, 1)[-1].startswith("line"))
    (gateway.folder / "enough").touch()
    ended = gateway.ended("elastic")
    assert ended["state"] == "SUCCEEDED", json.dumps(ended)
    assert_whole(gateway, job, 1)
    lines = texts(gateway, job, 1)
    again = max(n for n, text in enumerate(lines) if text.startswith("begun"))
    assert again > before
    # also what was not sent when it died
    printed = [text for text in lines[:again] if text.startswith("line")]
    assert printed == [f"line {n}" for n in range(len(printed))]


def test_another_pod_goes_on_with_the_log_of_one_that_was_deleted(gateway: Site) -> None:
    job = submitted(gateway)
    os.kill(json.loads((gateway.pod(job, 1) / "pod").read_text())[0], signal.SIGTERM)
    until(lambda: not lives(gateway.pod(job, 1)))
    length = len(gateway.stored_log(job, 1))
    new = another(gateway.pod(job, 1), "1-new")
    start(gateway, new, "new")
    until(lambda: begun(gateway, job, 1) == 2 and len(gateway.stored_log(job, 1)) > length + 1000)
    (gateway.folder / "enough").touch()
    ended = gateway.ended("elastic")
    assert ended["state"] == "SUCCEEDED", json.dumps(ended)
    assert_whole(gateway, job, 1)
    assert (new / "stdout").read_bytes() == gateway.stored_log(job, 1)[length:]
    until(lambda: not lives(new))


def test_who_comes_once_too_often_starts_nothing_and_waits_for_its_end(gateway: Site) -> None:
    job = submitted(gateway, elastic_max_restarts=0)
    kill(gateway.pod(job, 1))
    late = another(gateway.pod(job, 1), "1-late")
    start(gateway, late, "late")
    until(lambda: "nothing is started here" in (late / "stderr").read_text())
    assert lives(late)
    os.kill(json.loads((late / "pod").read_text())[0], signal.SIGTERM)
    until(lambda: not lives(late))
    assert begun(gateway, job, 1) == 1
