"""Endings whose advice was wrong once, with real ranks: the row of the list, and the hint."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from client_lib import Client, Job, JobFailed
from client_lib.reports import table
from tests.kit.server_process import ServerProcess

pytestmark = pytest.mark.process

SAVES_ALONE = """
import torch, torch.distributed as dist

dist.init_process_group("gloo")

def save_checkpoint():
    torch.save({}, "last.pt")
    dist.barrier()

for step in range(5):
    dist.all_reduce(torch.ones(1))
if dist.get_rank() == 0:
    save_checkpoint()
dist.barrier()
dist.barrier()
"""
LEAVES_AT_A_SIGNAL = """
import os, signal, sys, torch, torch.distributed as dist

dist.init_process_group("gloo")

def leave(*_):
    print("preempted, saving")
    sys.exit(0)

signal.signal(signal.SIGUSR1, leave)
for step in range(10):
    if dist.get_rank() == 1 and step == 3:
        os.kill(os.getpid(), signal.SIGUSR1)
    dist.all_reduce(torch.ones(1))
"""
FILE_IS_MISSING = """
import torch, torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()

class Images(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, index):
        if rank == 1 and index == 2:
            open("/data/coco/x.jpg")
        return torch.ones(1)

for batch in torch.utils.data.DataLoader(Images(), num_workers=1):
    dist.all_reduce(batch)
"""
NO_GUARD = """
import torch, torch.distributed as dist

dist.init_process_group("gloo")
numbers = torch.arange(4)
loader = torch.utils.data.DataLoader(numbers, num_workers=1, multiprocessing_context="spawn")
for batch in loader:
    pass
"""
SMALL_WORLD = """
import os, torch.distributed as dist

dist.init_process_group("gloo", rank=int(os.environ["RANK"]), world_size=2)
"""


class Said(NamedTuple):
    why: str
    """The last cell of the job's row in `client-lib list`."""
    hint: str


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    server = ServerProcess(tmp_path_factory.mktemp("server") / "state")
    yield Client(server.facts()["url"], (server.state_dir / "token").read_text().strip())
    server.kill()


def said(client: Client, folder: Path, source: str, **shape: int) -> Said:
    (folder / "train.py").write_text(source)
    job = Job(script=folder / "train.py", client=client, **shape)  # type: ignore[arg-type]
    job.submit()
    with pytest.raises(JobFailed):
        job.wait(timeout=120)
    info = job.info()
    assert info.failure
    return Said(table.one_line(table.why(info.model_dump(mode="json"))), info.failure.hint or "")


@pytest.mark.parametrize("shape", [{"processes_per_worker": 3}, {"n_workers": 3}])
def test_a_collective_of_rank_0_alone_is_named_with_its_line(
    client: Client, tmp_path: Path, shape: dict[str, int]
) -> None:
    found = said(client, tmp_path, SAVES_ALONE, **shape)
    assert found.why.startswith(
        "rank 0 made 8 collectives, ranks 1, 2 made 7: the extra one is barrier in save_checkpoint "
        "(train.py:8), which only rank 0 entered; ranks 1, 2 had ended with code 0 when rank 0 was "
        "in barrier (train.py:"
    )
    assert "`if rank == 0`" in found.hint


def test_a_rank_that_leaves_at_a_signal_is_named_with_its_last_line(
    client: Client, tmp_path: Path
) -> None:
    found = said(client, tmp_path, LEAVES_AT_A_SIGNAL, processes_per_worker=3)
    assert found.why.startswith("rank 1 had ended with code 0 when rank ")
    assert found.why.endswith(
        "was in all_reduce (train.py:14): rank 1 left a loop by an exit (train.py:8). Its last "
        "line: 'preempted, saving'"
    )
    assert "after the same step" in found.hint


def test_the_error_of_a_data_loader_is_shown_and_not_the_one_that_brings_it(
    client: Client, tmp_path: Path
) -> None:
    assert said(client, tmp_path, FILE_IS_MISSING, processes_per_worker=2).why == (
        "rank 1: FileNotFoundError: [Errno 2] No such file or directory: '/data/coco/x.jpg' (in "
        "DataLoader worker process 0)"
    )


def test_a_missing_guard_is_no_taken_port(client: Client, tmp_path: Path) -> None:
    found = said(client, tmp_path, NO_GUARD, processes_per_worker=1, n_workers=1)
    assert found.why.startswith("rank 0: a spawned process ran the script again: ")
    assert "if __name__ == '__main__':" in found.hint


def test_a_world_that_is_smaller_than_the_job_is_named_with_both_sizes(
    client: Client, tmp_path: Path
) -> None:
    found = said(client, tmp_path, SMALL_WORLD, n_workers=2, processes_per_worker=2)
    assert "the script started a world of 2, the job has 4:" in found.hint
    assert "Trainer(num_nodes=2)" in found.hint
