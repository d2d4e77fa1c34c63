"""Pods that can reach no server: they meet at a port of worker 0, and what
they say is on their stdout.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from client_lib.launcher_protocol.control import encode
from client_lib.launcher_protocol.plan import WorkerPlan
from client_lib.launcher_protocol.record import METRICS, parse
from client_lib.worker.zipapp_build import build
from tests.kit.interpreters import EACH_PYTHON
from tests.kit.processes import kill_processes_of
from tests.kit.waiting import until
from tests.worker_gateway.conftest import free_port

pytestmark = pytest.mark.process

DEADLINE_S = 60


class Gang:
    """Roots of pods, and their processes."""

    def __init__(self, folder: Path, script: str, n_workers: int, **plan: Any) -> None:
        self.folder, self.n_workers = folder, n_workers
        build(str(folder / "worker.pyz"))
        (folder / "train.py").write_text(script)
        shared = WorkerPlan(
            job="job",
            attempt=1,
            worker=-1,
            n_workers=n_workers,
            processes_per_worker=1,
            type="pytorch2",
            command=[str(folder / "train.py")],
            python=sys.executable,
            environment={},
            user_variables=[],
            working_dir=str(folder),
            master_addr="",
            master_port=0,
            gpus=[],
            cores=2,
            checkpoint_dir=str(folder / "checkpoints"),
            grace_s=2.0,
        )
        self.port = free_port()
        for worker in range(n_workers):
            for part in ("plan", "secret"):
                (self.root(worker) / part).mkdir(parents=True)
            told = {
                "protocol": 1,
                "server_url": None,
                "job": "job",
                "attempt": 1,
                "n_workers": n_workers,
            }
            told |= {
                "spool_bytes": 2**28,
                "gate_port": self.port,
                "termination_log": str(self.root(worker) / "word"),
            }
            (self.root(worker) / "plan" / "pod.json").write_text(json.dumps(told))
            (self.root(worker) / "plan" / "plan.json").write_text(shared._replace(**plan).to_json())
            (self.root(worker) / "secret" / "token").write_text("the token of all")

    def root(self, worker: int) -> Path:
        return self.folder / "pods" / str(worker)

    def start(
        self,
        worker: int,
        uid: str | None = None,
        before: tuple[str, ...] = (),
        python: str = sys.executable,
    ) -> subprocess.Popen[bytes]:
        environment = {
            "PATH": os.environ["PATH"],
            "RANK": str(worker),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "23456",
            "CLIENT_LIB_POD_UID": uid or f"uid-{worker}",
        }
        with (
            open(self.root(worker) / "stdout", "ab") as stdout,
            open(self.root(worker) / "stderr", "ab") as stderr,
        ):
            return subprocess.Popen(
                [
                    *before,
                    python,
                    "-I",
                    "-S",
                    str(self.folder / "worker.pyz"),
                    "pod",
                    str(self.root(worker)),
                ],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
            )

    def claim(self, worker: int, uid: str) -> None:
        """Connect to worker 0 as a pod that ends at once; worker 0 has been started."""
        hello = {"protocol": 1, "token": "the token of all", "worker": worker, "uid": uid}

        def connected() -> bool:
            try:
                pod = socket.create_connection(("127.0.0.1", self.port), DEADLINE_S)
            except ConnectionRefusedError:  # worker 0 does not listen yet
                return False
            with pod:
                pod.sendall(encode(hello))
            return True

        until(connected)

    def records(self, worker: int) -> list[str]:
        records = map(parse, (self.root(worker) / "stdout").read_bytes().splitlines())
        return [record.text for record in records if record.stream != METRICS]

    def word(self, worker: int) -> dict[str, Any]:
        word: dict[str, Any] = json.loads((self.root(worker) / "word").read_bytes())
        return word


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    kill_processes_of(tmp_path)


@pytest.fixture
def own_processes() -> tuple[str, ...]:
    """The command before another one that makes it process 1 of a namespace."""
    if os.geteuid() != 0 or not shutil.which("unshare"):
        pytest.skip("needs root and unshare for a process namespace of its own")
    return ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


@pytest.mark.smoke
def test_ranks_start_when_all_have_come(folder: Path) -> None:
    gang = Gang(
        folder, "import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])", 3
    )
    pods = [gang.start(worker) for worker in (0, 1)]
    until(lambda: all((gang.root(worker) / "run" / "control.sock").exists() for worker in (0, 1)))
    assert [gang.records(worker) for worker in (0, 1)] == [[], []]
    pods.append(gang.start(2))
    assert [pod.wait(DEADLINE_S) for pod in pods] == [0, 0, 0]
    assert [gang.records(worker) for worker in range(3)] == [[f"rank {n} of 3"] for n in range(3)]
    assert [gang.word(worker)["reason"] for worker in range(3)] == ["Completed"] * 3


@EACH_PYTHON
def test_any_python_of_an_image_runs_the_agent(folder: Path, python: str) -> None:
    gang = Gang(folder, "print('here')", 1)
    assert gang.start(0, python=python).wait(DEADLINE_S) == 0
    assert gang.records(0) == ["here"]


def test_the_first_failure_stops_the_others(folder: Path) -> None:
    gang = Gang(
        folder,
        "import os, time\nif os.environ['RANK'] == '1': raise ValueError\ntime.sleep(600)",
        3,
    )
    pods = [gang.start(worker) for worker in range(3)]
    assert [pod.wait(DEADLINE_S) for pod in pods] == [143, 1, 143]
    assert [gang.word(worker)["reason"] for worker in range(3)] == [
        "Cancelled",
        "ExitCode",
        "Cancelled",
    ]


def test_worker_0_stays_until_the_others_have_ended(folder: Path) -> None:
    script = (
        "import os, time\nwhile os.environ['RANK'] == '1' and not os.path.exists('enough'): "
        "time.sleep(0.01)"
    )
    gang = Gang(folder, script, 2)
    first, second = (gang.start(worker) for worker in (0, 1))
    until(lambda: (gang.root(0) / "word").exists())
    assert first.poll() is None
    (folder / "enough").touch()
    assert (second.wait(DEADLINE_S), first.wait(DEADLINE_S)) == (0, 0)


def test_a_stranger_and_a_second_pod_are_sent_away(folder: Path) -> None:
    gang = Gang(folder, "open('ran', 'w').close()", 3)
    (gang.root(2) / "secret" / "token").write_text("another token")
    gang.start(0)
    strange = gang.start(2)
    until(lambda: (gang.root(2) / "run" / "control.sock").exists())
    gang.claim(1, uid="the first")
    assert gang.start(1, uid="the second").wait(DEADLINE_S) == 76
    assert strange.poll() is None
    assert not (folder / "ran").exists()


def test_sigterm_stops_a_worker_that_waits_for_others(folder: Path) -> None:
    gang = Gang(folder, "open('ran', 'w').close()", 2)
    pod = gang.start(0)
    until(lambda: (gang.root(0) / "run" / "control.sock").exists())
    pod.terminate()
    assert pod.wait(DEADLINE_S) == 143
    assert gang.word(0)["reason"] == "Cancelled"
    assert not (folder / "ran").exists()


def test_as_process_1_it_heeds_sigterm(folder: Path, own_processes: tuple[str, ...]) -> None:
    """In a PID namespace of its own, as in a pod: there the kernel ignores
    signals that have no handler.
    """
    script = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('told to end'), sys.exit(3)))\n"
        "print('up', os.getpid(), open('/proc/1/cmdline').read().count('pod'))\n"
        "time.sleep(600)"
    )
    gang = Gang(folder, script, 1)
    outside = gang.start(0, before=own_processes)
    until(lambda: gang.records(0))
    agent = int(Path(f"/proc/{outside.pid}/task/{outside.pid}/children").read_text())
    assert int(gang.records(0)[0].split()[1]) < 30
    os.kill(agent, signal.SIGTERM)
    assert outside.wait(DEADLINE_S) == 143
    assert gang.records(0)[-1] == "told to end"
    assert gang.word(0)["reason"] == "Cancelled"


def test_a_dead_launcher_leaves_nothing_behind_in_a_pod(
    folder: Path, own_processes: tuple[str, ...]
) -> None:
    script = (
        "import os, subprocess, time\n"
        "left = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "print('up')\ntime.sleep(600)"
    )
    gang = Gang(folder, script, 1)
    outside = gang.start(0, before=own_processes)
    until(lambda: gang.records(0))
    holder = json.loads((gang.root(0) / "run" / "lock").read_text())
    agent = int(Path(f"/proc/{outside.pid}/task/{outside.pid}/children").read_text())
    inside = {status_of(int(pid))["NSpid"].split()[-1]: int(pid) for pid in descendants(agent)}
    os.kill(inside[str(holder["pid"])], signal.SIGKILL)
    assert outside.wait(DEADLINE_S) == 1
    assert gang.word(0)["reason"] == "LauncherLost"
    assert gang.word(0)["log_end_seq"] == len((gang.root(0) / "stdout").read_bytes().splitlines())


def descendants(pid: int) -> list[str]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return children + [below for child in children for below in descendants(int(child))]


def status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
