"""What a worker says is found by its path."""

from __future__ import annotations

import pytest

from client_lib.spec import paths
from server_stub.app import _Straight, routes


def test_an_operation_of_a_worker_is_told_from_whose_it_is() -> None:
    path = paths.worker("train-7", 2, 11)
    whose = {"name": "train-7", "attempt": "2", "worker": "11"}
    assert paths.split_worker(f"{path}/state") == (f"{paths.WORKERS}/state", whose)


@pytest.mark.parametrize("below", ["", "/", "/state/", "/results/3", "/outputs/a/b"])
def test_a_worker_and_what_lies_below_an_operation_are_none(below: str) -> None:
    assert paths.split_worker(paths.worker("train-7", 2, 11) + below) is None


@pytest.mark.parametrize(
    "path", [paths.job("a"), "/api/v1/jobs/a/attempts//workers/1/state", "/api/v1/jobs/a/attempts/"]
)
def test_other_paths_are_none(path: str) -> None:
    assert paths.split_worker(path) is None


def test_what_agents_say_all_the_time_is_found_without_a_search() -> None:
    found = _Straight(routes())._routes
    for operation in ("state", "log", "report"):
        assert ("PUT", f"{paths.WORKERS}/{operation}") in found
    assert not [path for _, path in found if path.endswith("/{rank}")]
