"""What `wait()` says of failures with a known cause, each on a real job
of the real local server.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from client_lib import Client, Job, JobFailed

TRUNCATED_UNDER_A_MAPPING = """
import mmap, tempfile
with tempfile.TemporaryFile() as file:   # what a full /dev/shm does to a DataLoader's worker
    file.truncate(4096)
    memory = mmap.mmap(file.fileno(), 4096)
    file.truncate(0)
    memory[0] = 1
"""
TAKEN_PORT = """
import socket
first, second = socket.socket(), socket.socket()
first.bind(("127.0.0.1", 0))
first.listen()
second.bind(first.getsockname())
"""
OUT_OF_GPU_MEMORY = """
class OutOfMemoryError(RuntimeError): ...
tried = "CUDA out of memory. Tried to allocate 2.00 GiB. "
raise OutOfMemoryError(tried + "GPU 0 has a total capacity of 79.10 GiB")
"""
NCCL = """
import torch.distributed as dist
dist.init_process_group("nccl")
"""


@pytest.fixture
def failure_of(folder: Path, client: Client) -> Callable[..., JobFailed]:
    """Run this code as a job that fails."""

    def fail(text: str, **fields: object) -> JobFailed:
        (folder / "train.py").write_text(text)
        job = Job(script="train.py", instance_type="cpu.1C.1G", client=client, **fields)  # type: ignore[arg-type]
        job.submit()
        with pytest.raises(JobFailed) as caught:
            job.wait(timeout=60)
        return caught.value

    return fail


@pytest.mark.parametrize(
    ("code", "says", "way_out"),
    [
        (
            TRUNCATED_UNDER_A_MAPPING,
            "bus error",
            "/dev/shm is too small for the DataLoader's workers",
        ),
        (TAKEN_PORT, "OSError: [Errno", "another process listens on that port"),
        (OUT_OF_GPU_MEMORY, "CUDA out of memory. Tried to allocate", "the GPU's memory is full"),
        (
            "import no_such_module",
            "No module named 'no_such_module'",
            "add requirements=['no_such_module']",
        ),
    ],
    ids=["shared memory", "address in use", "CUDA memory", "missing module"],
)
def test_a_known_cause_comes_with_the_way_out(
    failure_of: Callable[..., JobFailed], code: str, says: str, way_out: str
) -> None:
    failed = failure_of(code)
    assert says in failed.message
    assert way_out in (failed.hint or "")
    assert "next: `job.logs(rank=0)`" in (failed.hint or "")


def test_nccl_without_gpus_is_told_to_take_gloo(failure_of: Callable[..., JobFailed]) -> None:
    assert "'gloo'" in (failure_of(NCCL).hint or "")


def test_a_file_that_the_snapshot_left_out_is_named(
    failure_of: Callable[..., JobFailed], folder: Path
) -> None:
    (folder / "data.txt").write_text("1 2 3")
    (folder / ".gitignore").write_text("*.txt\n")
    failed = failure_of("open('data.txt')", code="snapshot")
    assert "FileNotFoundError" in failed.message
    assert f"{folder / 'data.txt'} exists, but the snapshot left it out" in (failed.hint or "")


@pytest.mark.parametrize(
    ("signal", "exit_code", "means"),
    [
        (9, 137, "killed, most often out of memory"),
        (11, 139, "segmentation fault"),
        (15, 143, "terminated"),
    ],
)
def test_the_end_by_a_signal_is_explained(
    failure_of: Callable[..., JobFailed], signal: int, exit_code: int, means: str
) -> None:
    failed = failure_of(
        f"import os; print('the last line', flush=True); os.kill(os.getpid(), {signal})"
    )
    assert f"rank 0 on worker 0 ended with exit code {exit_code} ({means})" in failed.message
    assert "    the last line" in failed.message
