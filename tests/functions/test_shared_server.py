"""Functions on a server that several users share, with bounds of its own."""

import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from client_lib import Client, Forbidden, Job, JobFailed, NoResult, TooLarge
from server_stub.http import users_file
from tests.kit.processes import free_port
from tests.kit.server_process import ServerProcess


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Client]]:
    """By the user's name; root is an admin."""
    folder = tmp_path_factory.mktemp("shared")
    users = folder / "users.toml"
    tokens = {
        name: users_file.add(users, name, admin=name == "root") for name in ("ann", "bob", "root")
    }
    bound: dict[str, Any] = {"CLIENT_LIB_SERVER_MAX_SNAPSHOT_BYTES": "1000000"}
    server = ServerProcess(folder / "state", "--users-file", str(users), **bound)
    try:
        url = server.facts()["url"]
        yield {name: Client(url, token=token) for name, token in tokens.items()}
    finally:
        server.end()
        server.kill()


def test_a_result_of_another_s_job_is_read_by_who_trusts_it(
    clients: dict[str, Client], folder: Path
) -> None:
    job = Job(script=lambda: {"loss": 0.25}, client=clients["ann"], name="of-ann")
    job.submit()
    assert job.result(timeout=60) == {"loss": 0.25}
    seen = clients["root"].get_job("of-ann")
    for read in (seen.result, seen.results):
        with pytest.raises(Forbidden, match="written by code of ann") as refused:
            read()
        assert "trust=True" in str(refused.value)
    assert seen.result(trust=True) == {"loss": 0.25}
    assert seen.results(trust=True) == [{"loss": 0.25}]


@pytest.mark.process
def test_what_another_s_function_raised_is_not_rebuilt_without_trust(
    clients: dict[str, Client], folder: Path
) -> None:
    def fail() -> None:
        raise KeyError("learning_rate")

    job = Job(script=fail, client=clients["ann"], name="fails")
    job.submit()
    with pytest.raises(KeyError):
        job.result(timeout=60)
    with pytest.raises(Forbidden, match="trust it"):
        clients["root"].get_job("fails").result()
    with pytest.raises(KeyError):
        clients["root"].get_job("fails").result(trust=True)


def test_a_result_over_the_server_s_bound_is_said_and_the_job_succeeded(
    clients: dict[str, Client], folder: Path
) -> None:
    job = Job(script=lambda: bytes(2_000_000), client=clients["ann"])
    job.submit()
    job.wait(timeout=60)
    with pytest.raises(
        NoResult, match=r"what rank 0 returned is larger than the 1\.0 MB that a result may have"
    ):
        job.result()


def test_arguments_over_the_server_s_bound_name_the_largest(
    clients: dict[str, Client], folder: Path
) -> None:
    job = Job(script=lambda small, table: None, args=("x", bytes(3_000_000)), client=clients["ann"])
    with pytest.raises(
        TooLarge, match="larger than the 1000000 bytes that this server takes"
    ) as refused:
        job.submit()
    assert "3.0 MB  argument 1" in refused.value.message


def listen(port: int, flag: str) -> None:
    with socket.create_server(("localhost", port)):
        print("listens", flush=True)
        while Path(flag).exists():
            time.sleep(0.05)


def meet(port: int) -> None:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch lists no exports

    TCPStore("localhost", port, is_master=True)


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="/proc says who listens")
def test_a_port_that_another_s_job_holds_is_named_without_that_job(
    clients: dict[str, Client], folder: Path
) -> None:
    port = free_port()
    flag = folder / "flag"
    flag.touch()
    first = Job(script=listen, args=(port, str(flag)), client=clients["ann"], name="holds-the-port")
    first.submit()
    next(first.log_lines())
    job = Job(script=meet, args=(port,), client=clients["bob"])
    job.submit()
    with pytest.raises(JobFailed, match=f"port {port} is held by another user's job") as failed:
        job.wait(timeout=100)
    assert "holds-the-port" not in str(failed.value)
    flag.unlink()
    first.wait(timeout=60)
