"""A job's own command before its ranks: what it sees, how it fails, and how it is ended."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from client_lib.launcher_protocol import control
from client_lib.launcher_protocol.termination import TERMINATION_MESSAGE_MAX, termination_message
from tests.kit.waiting import until
from tests.worker.conftest import Worker

pytestmark = pytest.mark.process
MakeWorker = Callable[..., Worker]
SEEN = 'for name in RANK LOCAL_RANK WORLD_SIZE NODE_RANK TORCHELASTIC_ERROR_FILE MINE \
CLIENT_LIB_JOB_NAME PWD; do \
eval echo "$name \\${$name-none}"; done'


@pytest.mark.smoke
def test_it_runs_once_before_the_ranks_in_their_folder_and_environment(
    worker: MakeWorker, tmp_path: Path
) -> None:
    environment = {**os.environ, "MINE": "a", "RANK": "7", "OMPI_COMM_WORLD_RANK": "7"}
    script = "print(open('made').read())"
    one = worker(
        script, setup=f"{SEEN}\necho once >> made", processes_per_worker=2, environment=environment
    )
    report = one.run()
    assert (report["reason"], "last_lines" in report) == ("Completed", False)
    assert [one.lines(rank=rank) for rank in (0, 1)] == [["once", ""]] * 2
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "NODE_RANK", "TORCHELASTIC_ERROR_FILE")
    expected = [
        *(f"{name} none" for name in names),
        "MINE a",
        "CLIENT_LIB_JOB_NAME job-1",
        f"PWD {tmp_path}/0",
    ]
    assert one.lines(rank=None) == expected


def test_its_failure_has_its_exit_code_and_its_last_lines(worker: MakeWorker) -> None:
    one = worker("print('never')", setup="echo begun; false; echo unreached", n_workers=1)
    report = one.start().report()
    assert (report["reason"], report["exit_code"], report["ranks"]) == ("SetupFailed", 1, [])
    assert report["message"] == "setup ended with exit code 1: begun"
    one = worker("", setup="seq 1000; echo broken >&2; exit 3")
    report = one.start().report()
    assert (report["message"], report["exit_code"]) == ("setup ended with exit code 3: broken", 3)
    assert report["last_lines"][-2:] == ["1000", "broken"]
    assert len(one.lines(rank=None)) == 1000
    assert worker("", setup="kill -9 $$").start().report()["exit_code"] == 137


def test_a_long_report_of_it_fits_into_a_termination_message(worker: MakeWorker) -> None:
    one = worker(
        "", setup="for i in $(seq 60); do head -c 2000 /dev/zero | tr '\\0' x; echo; done; exit 3"
    )
    report: Any = one.start().report()
    assert len(report["last_lines"]) == 50
    assert len(termination_message(report)) <= TERMINATION_MESSAGE_MAX


@pytest.mark.parametrize("portable", [False, True])
def test_a_stop_ends_it_with_all_that_it_has_started(worker: MakeWorker, portable: bool) -> None:
    away = "import os, time; os.setsid(); time.sleep(600)"
    one = worker(
        "", setup=f"{sys.executable} -c '{away}' & echo begun; sleep 600", portable=portable
    ).start()
    one.waits_for("begun")
    one.stop(5.0)
    report = one.report()
    assert (report["reason"], report["exit_code"]) == ("Cancelled", 0)
    until(lambda: not one.left_over(), "its processes are gone")


def test_a_stop_that_comes_before_the_preparation_prevents_it(
    worker: MakeWorker, tmp_path: Path
) -> None:
    program = """if True:
        import socket, sys
        from client_lib.launcher_protocol import control
        from client_lib.worker.launcher import run_worker

        agents, launchers = socket.socketpair()
        agents.sendall(control.order(control.STOP, grace_s=5.0))
        code = run_worker(sys.argv[1], agent=launchers)
        print(code, *control.Lines().feed(agents.recv(65536)))
    """
    one = worker("", setup="touch made; sleep 600")
    command = [sys.executable, "-c", program, one.directory.path]
    told = subprocess.run(command, stdout=subprocess.PIPE, timeout=60, check=True).stdout
    assert told.decode().strip() == "0 {'event': 'ended'}"
    assert not (tmp_path / "0" / "checkpoints").exists()
    assert one.left_over() == []


def test_its_time_is_limited(worker: MakeWorker) -> None:
    report = worker("", setup="sleep 600", setup_limit_s=0.6).start().report()
    assert (report["reason"], report["message"]) == (
        "Timeout",
        "setup ran for 0.01 min, the limit that stop_timer sets",
    )


def test_its_limit_may_be_longer_than_one_wait_of_the_system(worker: MakeWorker) -> None:
    assert worker("", setup="sleep 0.2", setup_limit_s=40 * 86400.0).run()["reason"] == "Completed"


def test_a_service_that_it_starts_lives_as_long_as_the_ranks(worker: MakeWorker) -> None:
    script = "import os; os.kill(int(open('pid').read()), 0); print('it lives')"
    one = worker(script, setup="sleep 600 & echo $! > pid")
    assert one.run()["reason"] == "Completed"
    assert one.lines() == ["it lives"]
    until(lambda: not one.left_over(), "it is gone")


def test_without_a_shell_the_worker_names_it(worker: MakeWorker, tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": str(tmp_path)}
    report = worker("", setup="true", environment=environment).start().report()
    assert (report["reason"], report["message"]) == (
        "StartFailed",
        "setup could not be started: sh: No such file or directory",
    )


def test_a_worker_is_ready_only_after_it(worker: MakeWorker, tmp_path: Path) -> None:
    one = worker("", setup="while [ ! -e go ]; do sleep 0.02; done").start()
    assert one.connection
    with pytest.raises(TimeoutError):
        one.connection.receive(0.3)
    (tmp_path / "0" / "go").touch()
    message: dict[str, Any] | None = one.connection.receive(30.0)
    assert message == {"event": control.READY}
    one.stop(0.0)
    one.report()
