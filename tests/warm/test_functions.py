"""Functions are started warm, too, however they are called."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import client_lib
from client_lib import Client, Job, list_jobs
from client_lib.notebook import notebook_launcher
from client_lib.torch_distributor import TorchDistributor
from client_lib.transport import local_server
from tests.kit.local_server import CLIENT_VARIABLES, stop_server
from tests.kit.waiting import until

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="the warm pool is there on Linux only"),
]
WITHIN_S = 60.0


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """Of a local server of its own; the working directory is empty."""
    for name in CLIENT_VARIABLES:
        monkeypatch.delenv(f"CLIENT_LIB_{name}", raising=False)
    monkeypatch.setenv("CLIENT_LIB_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.setenv("CLIENT_LIB_STATE_DIR", str(tmp_path / "state"))
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    local_server.find_or_start(tmp_path / "state")
    yield Client()
    stop_server(tmp_path / "state")


def rank() -> int:
    import tqdm  # noqa: F401  (what the pool is begun with)

    return int(os.environ["RANK"])


def was_warm() -> bool | None:
    """The newest job."""
    return list_jobs(limit=1)[0].info().warm


def test_functions_and_what_calls_them_for_other_libraries_are_warm(client: Client) -> None:
    job = Job(script=rank, n_workers=2)
    job.submit()
    assert job.results(timeout=WITHIN_S) == [0, 1]
    assert job.info().warm is False
    until(lambda: [pool.state for pool in client.server_info().warm_pools] == ["ready"])
    again = Job(script=rank, n_workers=2)
    again.submit()
    assert (again.results(timeout=WITHIN_S), again.info().warm) == ([0, 1], True)
    assert (notebook_launcher(rank, num_processes=2), was_warm()) == (0, True)
    assert (TorchDistributor(num_processes=2, use_gpu=False).run(rank), was_warm()) == (0, True)
    assert (client_lib.remote(n_workers=2)(rank)(), was_warm()) == (0, True)
