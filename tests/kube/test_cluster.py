"""The watches of a cluster bring what they list and each change into its
inventory, on the event loop.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from client_lib.spec.job import JobSpec
from server_stub.runtimes.kube import names
from server_stub.runtimes.kube.cluster import Cluster
from server_stub.runtimes.kube.objects import AttemptObjects, Record
from server_stub.runtimes.kube.observe.inventory import Workload
from server_stub.runtimes.kube.pytorchjob import PYTORCHJOB, REPLICA_INDEX, REPLICA_TYPE
from tests.kube.cases import CLUSTER, Builder

KEY = names.AttemptKey("j1", 1)
PODS, JOBS = "pods", "pytorchjobs"


def found(uid: str, **labels: str) -> dict[str, Any]:
    ours = names.labels(KEY.job_id, KEY.attempt, "train") if labels else {}
    return {"metadata": {"name": uid, "uid": uid, "resourceVersion": "1", "labels": ours | labels}}


def pod(uid: str) -> dict[str, Any]:
    return found(uid, **{REPLICA_TYPE: "master", REPLICA_INDEX: "0"})


class Recorded:
    """An API server that lists these objects, then reports these changes, then nothing."""

    def __init__(
        self, lists: dict[str, list[Any]], changes: dict[str, list[tuple[str, Any]]]
    ) -> None:
        self._lists, self._changes = lists, changes
        self._silence = threading.Event()

    def get(self, path: str, query: Any) -> Any:
        return {
            "items": self._lists.get(path.rpartition("/")[2], []),
            "metadata": {"resourceVersion": "1"},
        }

    def stream(self, path: str, query: Any, read_s: float) -> Stream:
        return Stream(self._changes.pop(path.rpartition("/")[2], []), self._silence)

    def close(self) -> None:
        pass


class Stream:
    def __init__(self, changes: list[tuple[str, Any]], silence: threading.Event) -> None:
        self._changes, self._silence = changes, silence

    def __iter__(self) -> Iterator[bytes]:
        yield from (
            json.dumps({"type": kind, "object": each}).encode() for kind, each in self._changes
        )
        self._silence.wait(30)

    def abort(self) -> None:
        self._silence.set()


@pytest.mark.anyio
async def test_changes_reach_the_inventory() -> None:
    case = Builder().build("train")
    api = Recorded(
        lists={PODS: [pod("a"), found("foreign")], JOBS: [found("job", job="x")]},
        changes={
            PODS: [("ADDED", pod("b")), ("MODIFIED", found("foreign")), ("DELETED", pod("a"))]
        },
    )
    cluster = Cluster.of(cast(Any, api), case.cluster, cast(Any, None))
    listed: list[Workload] = []
    changed = asyncio.Event()
    cluster.inventory.follow(KEY, changed.set)

    def take(kind: str, workloads: list[Workload]) -> None:
        assert kind == PYTORCHJOB.name
        listed.extend(workloads)
        changed.set()

    watches = cluster.watches(take)
    for watch in watches:
        watch.start()
    while not listed or {each.uid: each.gone for each in cluster.inventory.pods(KEY)} != {
        "a": True,
        "b": False,
    }:
        await changed.wait()
        changed.clear()
    for watch in watches:
        watch.stop()
    assert [each.key for each in listed] == [KEY]


def test_an_attempt_whose_request_can_not_be_read_is_found() -> None:
    """Its workload was created, and then the server was killed and the request damaged."""
    workload = Builder().build("train").objects().workload
    api = SimpleNamespace(
        get=lambda path: workload | {"metadata": {**workload["metadata"], "uid": "made"}}
    )
    attempt = replace(
        Builder().build("train").attempt, spec=JobSpec(script="unreadable"), never_started=False
    )
    cluster = Cluster.of(cast(Any, api), CLUSTER, cast(Any, None))
    assert (
        asyncio.run(AttemptObjects(attempt, cluster, Record(), cast(Any, None)).uid_of_own())
        == "made"
    )
