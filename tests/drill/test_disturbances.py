"""Faults on real processes and runs."""

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from client_lib.client import Client
from client_lib.drill.disturbances import ENDED, TooLate, disturb, reach, send
from client_lib.drill.faults import Fault, Moment
from client_lib.drill.folders import ground
from client_lib.drill.runs import Run, RunProcess, Script
from client_lib.drill.saves import Saves
from client_lib.spec.job import JobSpec
from tests.kit.waiting import until

pytestmark = [
    pytest.mark.process,
    pytest.mark.xdist_group("drill"),
    pytest.mark.skipif(sys.platform != "linux", reason="a drill needs /proc"),
]


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def test_a_process_that_has_got_the_number_of_a_rank_is_spared(
    sleeper: subprocess.Popen[bytes],
) -> None:
    meant = RunProcess.running(sleeper.pid)
    earlier = meant._replace(started=str(int(meant.started) - 1))
    assert not earlier.is_alive()
    send([earlier], signal.SIGKILL)
    with pytest.raises(subprocess.TimeoutExpired):
        sleeper.wait(0.2)
    send([meant], signal.SIGKILL)
    assert sleeper.wait(10) == -signal.SIGKILL


@pytest.fixture
def begin(
    client: Client, folder: Path, temporary: Path
) -> Iterator[Callable[[str], tuple[Run, Saves]]]:
    """Starts a run of a command, and gives the saves of its folder."""
    with ExitStack() as stack:

        def begun(command: str) -> tuple[Run, Saves]:
            spec = JobSpec(script=command, instance_type="cpu.1C.1G")
            at = stack.enter_context(ground(spec, command))
            place = at.place("kill")
            stack.callback(shutil.rmtree, place.folder)
            run = Run(Script(client, spec, sys.executable, "abc"), place, "first", "a run")
            stack.callback(run.stop)
            return run, Saves(str(place.folder))

        yield begun


def test_a_command_that_has_ended_is_too_late(
    begin: Callable[[str], tuple[Run, Saves]],
) -> None:
    run, saves = begin("true")
    run.wait(60.0)
    with pytest.raises(TooLate, match=ENDED):
        disturb(Fault.KILL, run, saves, 1.0)


def test_a_run_without_saves_is_waited_for_no_longer_than_the_limit(
    begin: Callable[[str], tuple[Run, Saves]],
) -> None:
    run, saves = begin("sleep 600")
    until(lambda: not run.is_over() and run.info.started_at)
    with pytest.raises(TooLate, match="did not come to the moment"):
        reach(run, saves, Moment(saves=1, steps=None, after_s=0.0), 0.0, 0.2)
    with pytest.raises(TooLate, match="no checkpoint has begun to change"):
        disturb(Fault.SAVE, run, saves, 0.2)
    run.stop()
    assert run.is_over()
