"""`client-lib drill` as a process."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import client_lib
from client_lib.client import Client
from client_lib.spec.states import State
from tests.kit.waiting import until

pytestmark = [
    pytest.mark.process,
    pytest.mark.xdist_group("drill"),
    pytest.mark.skipif(sys.platform != "linux", reason="a drill needs /proc"),
]


def test_sigterm_cancels_the_run_and_removes_its_folder(
    client: Client, folder: Path, temporary: Path
) -> None:
    (folder / "train.py").write_text("open('begun', 'w').close()\nimport time\ntime.sleep(600)\n")
    command = [sys.executable, "-m", "client_lib", "drill", "-i", "cpu.1C.1G", "train.py"]
    with subprocess.Popen(command, cwd=folder) as drill:
        until(lambda: list(temporary.glob("client-lib-drill-*/undisturbed-1/code/begun")))
        drill.send_signal(signal.SIGTERM)
        assert drill.wait(60) == 128 + signal.SIGTERM
    jobs = [job for job in client_lib.list_jobs(client=client) if "drill" in job.spec.labels]
    assert [job.info().state for job in jobs] == [State.CANCELLED]
    assert not list(temporary.glob("client-lib-drill-*"))
