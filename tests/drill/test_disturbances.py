"""Faults on real processes and runs."""

import signal
import subprocess
from collections.abc import Iterator

import pytest

from client_lib.drill.disturbances import send
from client_lib.drill.runs import Process

pytestmark = pytest.mark.process


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def test_a_process_that_has_got_the_number_of_a_rank_is_spared(
    sleeper: subprocess.Popen[bytes],
) -> None:
    meant = Process.running(sleeper.pid)
    earlier = meant._replace(started=str(int(meant.started) - 1))
    assert not earlier.is_alive()
    send([earlier], signal.SIGKILL)
    with pytest.raises(subprocess.TimeoutExpired):
        sleeper.wait(0.2)
    send([meant], signal.SIGKILL)
    assert sleeper.wait(10) == -signal.SIGKILL
