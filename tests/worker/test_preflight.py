"""The check of the machines before the script."""

import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from client_lib.launcher_protocol import control
from client_lib.worker import preflight
from client_lib.worker.preflight import Failed, Rank, compare
from tests.kit.bounds import Bounds
from tests.kit.processes import free_port
from tests.kit.waiting import until
from tests.worker.conftest import Worker

MakeWorker = Callable[..., Worker]
HOST = socket.gethostname()


def measured(worker: int, host: str = "", **seconds: float) -> dict[str, Any]:
    return {"worker": worker, "host": host or f"node-{worker}", "clock": 1000.0, **seconds}


def test_a_slow_worker_and_a_wrong_clock_are_named() -> None:
    workers = [measured(number, disk=0.1, matmul=0.01, link=0.02) for number in range(4)]
    assert compare(workers) == [
        "disk 0.100 to 0.100 s, matmul 0.010 to 0.010 s, link 0.020 to 0.020 s"
    ]
    workers[2] |= {"disk": 0.8, "clock": 1003.0}
    assert compare(workers)[1:] == [
        (
            "worker 2 (node-2) is slow: it writes 32 MB to its checkpoint folder in 0.80 s, and "
            "worker 0 in 0.10 s"
        ),
        "the clock of worker 2 (node-2) differs by +3.0 s",
    ]
    assert (
        len(
            compare(
                [measured(0, disk=0.1), *(measured(number, disk=9.0) for number in range(1, 100))]
            )
        )
        == 10
    )


@pytest.mark.parametrize(
    "other", [measured(1, "node-0", disk=0.9), measured(1, disk=0.55), measured(1, disk=0.29)]
)
def test_workers_of_one_machine_and_small_differences_are_not_called_slow(
    other: dict[str, Any],
) -> None:
    assert len(compare([measured(0, disk=0.1), other])) == 1


def rank(number: int, size: int, port: int = 1, master: str = "127.0.0.1") -> Rank:
    return Rank(number, size, 0, number, size, master, port, 0)


def test_a_rank_that_does_not_come_is_named(bounds: Bounds) -> None:
    bounds(preflight, MEET_S=0.5)
    with pytest.raises(
        Failed, match=r"^waits in vain for rank 1 \(worker 1\), rank 2 \(worker 2\), for 0\.5 s$"
    ):
        preflight.meet(rank(0, 3, port=0))
    with pytest.raises(
        Failed, match=r"^can't resolve no\.such\.host\.invalid, the name of worker 0, for 0\.5 s: "
    ):
        preflight.meet(rank(1, 2, master="no.such.host.invalid"))
    with pytest.raises(Failed, match=r"^can't reach rank 0 at 127\.0\.0\.1:1: "):
        preflight.meet(rank(1, 2))


@pytest.mark.process
def test_the_loss_of_rank_0_after_the_meeting_is_a_sentence() -> None:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # takes a second

    port = free_port()
    master = (
        f"import time; from torch.distributed import TCPStore; s = TCPStore('127.0.0.1', {port}, "
        "2, True, "
    )
    master += "wait_for_workers=False); s.get('measured/1'); print(flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", master], stdout=subprocess.PIPE) as process:
        assert process.stdout
        store = TCPStore("127.0.0.1", port, 2, False, wait_for_workers=False)
        assert preflight.share(rank(1, 2), store, {"worker": 1}) == []
        process.stdout.readline()
        process.kill()
        process.wait()
        for lost in (
            lambda: preflight.leave(rank(1, 2), store),
            lambda: preflight.share(rank(1, 2), store, {}),
        ):
            with pytest.raises(preflight.LostPeer, match=r"^has lost rank 0 \(worker 0\): "):
                lost()


def test_a_folder_without_room_and_a_missing_gpu_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CLIENT_LIB_CHECKPOINT_DIR", str(tmp_path / "no"))
    with pytest.raises(
        Failed, match=rf"^can't write 32 MB to {tmp_path}/no: No such file or directory$"
    ):
        preflight.own_measures(rank(0, 1))
    # this machine may have GPUs
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with pytest.raises(Failed, match=r"^torch \S+ sees no GPU, with CUDA_VISIBLE_DEVICES=0,1$"):
        preflight.this_rank()


def checked(one: Worker) -> Worker:
    """Returns when the check has begun: its ranks may never run."""
    one.start()
    assert one.event() == control.READY
    assert one.connection
    one.connection.send(control.order(control.GO))
    return one


@pytest.mark.process
@pytest.mark.smoke
def test_the_script_runs_after_it(worker: MakeWorker) -> None:
    one = worker(
        "print('trained')",
        n_workers=1,
        processes_per_worker=2,
        preflight=True,
        master_port=free_port(),
    )
    assert one.run()["reason"] == "Completed"
    said = "\n".join(one.lines(rank=None))
    assert re.search(
        r"^preflight: 1 workers, 2 ranks: all_reduce of 1 KB [\d.]+ ms, of 64 MB [\d.]+ s$",
        said,
        re.M,
    )
    assert re.search(
        r"^preflight: passed in [\d.]+ s, beside [\d.]+ s for the import of torch and the "
        r"rendezvous$",
        said,
        re.M,
    )
    assert [one.lines(rank=number) for number in (0, 1)] == [["trained"]] * 2


@pytest.mark.process
def test_a_failing_check_ends_the_worker_with_its_sentence(
    worker: MakeWorker, tmp_path: Path
) -> None:
    folder = tmp_path / "sick"
    folder.mkdir()
    (folder / "torch.py").write_text(
        "raise ImportError('libcudart.so.12: cannot open shared object file')"
    )
    one = worker(
        "print('never')", preflight=True, environment={"PYTHONPATH": str(folder)}, n_workers=1
    )
    report = checked(one).report()
    assert (report["reason"], report["ranks"]) == ("PreflightFailed", [])
    text = (
        f"worker 0 ({HOST}): preflight needs torch: libcudart.so.12: cannot open shared object file"
    )
    assert report["message"] == f"preflight of worker 0 ended with exit code 1: {text}"
    assert report["last_lines"] == [text]
    assert one.lines() == []


@pytest.mark.process
def test_a_stop_ends_it(worker: MakeWorker, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(
        f"#!/bin/sh\necho checking\nexec {sys.executable} -c 'import time; time.sleep(600)'\n"
    )
    python.chmod(0o755)
    one = checked(worker("print('never')", preflight=True, python=str(python), n_workers=1))
    one.waits_for("checking")
    one.stop(5.0)
    assert one.report()["reason"] == "Cancelled"
    until(lambda: not one.left_over(), "its processes are gone")
