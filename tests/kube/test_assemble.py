"""The runtime that the settings of a server on a cluster lead to."""

from pathlib import Path
from typing import Any

import pytest

from client_lib.errors import InvalidRequest
from server_stub.files.room import Room
from server_stub.runtimes.kube.runtime import KubeRuntime, assemble
from server_stub.settings import Settings
from server_stub.worker_gateway.attempt import WorkerRegistry
from tests.kube.cases import SMALL, case
from tests.kube.test_connect import kubeconfig


def runtime(folder: Path, **settings: Any) -> KubeRuntime:
    """The runtime of a server that is never started."""
    catalogue = folder / "catalogue.yaml"
    catalogue.write_text(SMALL)
    registry = WorkerRegistry(folder / "worker.key", lambda *_: folder, Room(folder, 0).spare)
    given = Settings(
        state_dir=folder,
        data_dir=folder,
        runtime="kubernetes",
        catalogue=catalogue,
        kubeconfig=kubeconfig(folder),
        worker_server_url="https://jobs.example",
        **settings,
    )
    return assemble(given, registry, [])


def secret(of: KubeRuntime) -> dict[str, str]:
    """The Secret of the workers of a job, masked."""
    objects = of.render(case("one-worker").attempt).objects
    found: dict[str, str] = next(each["stringData"] for each in objects if each["kind"] == "Secret")
    return found


def test_workers_get_the_authority_that_signed_the_certificate_of_the_server(
    tmp_path: Path,
) -> None:
    authority = tmp_path / "ca.pem"
    authority.write_text("-----BEGIN CERTIFICATE-----\n")
    assert set(secret(runtime(tmp_path, worker_server_ca=authority))) == {"token", "ca.crt"}
    assert set(secret(runtime(tmp_path))) == {"token"}, "those of their image"


def test_an_authority_that_can_t_be_read_is_named_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"worker_server_ca=.*ca\.pem can't be read: No such"):
        runtime(tmp_path, worker_server_ca=tmp_path / "ca.pem")
