"""Functions written for one machine, as PyTorch's DDP tutorial has them: they set
MASTER_ADDR and a fixed port.
"""

import os
import sys
import time
from pathlib import Path

import pytest

from client_lib import Job, JobFailed
from tests.kit.processes import free_port

pytestmark = pytest.mark.process


def meet(rank: int, world_size: int, port: int, flag: str | None = None) -> float:
    """The sum of all ranks; with `flag`, not before that file is gone."""
    import torch
    import torch.distributed as dist

    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", str(port)
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    total = torch.tensor(float(rank))
    dist.all_reduce(total)
    if flag:
        print("met", flush=True)
    while flag and os.path.exists(flag):
        time.sleep(0.05)
    return total.item()


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.mark.parametrize(
    "shape", [{"processes_per_worker": 2}, {"n_workers": 2, "processes_per_worker": 1}]
)
def test_all_workers_of_this_machine_meet_at_localhost(
    folder: Path, port: int, shape: dict[str, int]
) -> None:
    job = Job(script=meet, args=(port,), **shape)  # type: ignore[arg-type]
    job.submit()
    assert job.results(timeout=100) == [1.0, 1.0]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc says who listens")
def test_a_port_that_another_job_holds_is_named_with_that_job(folder: Path, port: int) -> None:
    flag = folder / "flag"
    flag.touch()
    first = Job(script=meet, args=(port, str(flag)), name="holds-the-port")
    first.submit()
    next(first.log_lines())
    second = Job(script=meet, args=(port,))
    second.submit()
    with pytest.raises(Exception, match="EADDRINUSE") as raised:
        second.result(timeout=100)
    assert isinstance(raised.value.__cause__, JobFailed)
    assert f"port {port} is held by job holds-the-port (process " in str(raised.value.__cause__)
    with pytest.raises(JobFailed, match=f"port {port} is held by job holds-the-port"):
        second.wait()
    flag.unlink()
    assert first.result(timeout=100) == 0.0
