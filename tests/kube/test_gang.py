"""One attempt from its objects to its removal, on a cluster that is a table in memory; pods do not reach the server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from client_lib.spec.states import Reason
from client_lib.spec.wire import CodeInPlace, Submitter
from server_stub.runtimes import Observation
from server_stub.runtimes.kube import names
from server_stub.runtimes.kube.cluster import Cluster
from server_stub.runtimes.kube.gang import Gang
from server_stub.runtimes.kube.observe import parse
from server_stub.runtimes.kube.pytorchjob import PYTORCHJOB, manifest
from server_stub.runtimes.kube.render import Objects
from server_stub.runtimes.kube.workload import Object
from server_stub.worker_gateway import WorkerRegistry
from tests.kube.cases import CLUSTER, Builder

pytestmark = pytest.mark.anyio
UNREACHED = replace(CLUSTER, server_url=None)
DIGEST = {"reason": "Completed", "message": "fine", "ended_at": "2026-11-22T12:00:00+00:00", "exit_code": 0}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Site:
    """Stands for `ObjectsApi` and `PodLogs`, and for the cluster behind them."""

    def __init__(self, folder: Path, *, never_started: bool = True) -> None:
        case = Builder(code=CodeInPlace(), submitter=Submitter(), cluster=UNREACHED, spec={"script": "true"}).build("x")
        self.attempt = replace(case.attempt, job_dir=folder, never_started=never_started)
        self.key = names.AttemptKey(self.attempt.job_id, self.attempt.number)
        registry = WorkerRegistry(folder / "key", lambda job_id, attempt: folder)
        cluster = Cluster.of(cast(Any, None), PYTORCHJOB, UNREACHED, case.catalogue, registry)
        self.inventory = cluster.inventory
        self.inventory.list_workloads(())
        self.said: list[Observation] = []
        self._news = asyncio.Event()
        self.gang = Gang(self.attempt, replace(cluster, objects=cast(Any, self), logs=cast(Any, self)), self._take)

    def _take(self, seen: Observation) -> None:
        self.said.append(seen)
        self._news.set()

    async def until(self, true: Callable[[], bool]) -> None:
        while not true():
            self._news.clear()
            await asyncio.wait_for(self._news.wait(), 30)

    def put_pod(self, **status: Any) -> None:
        labels = names.labels(self.key.job_id, self.key.attempt, "x")
        labels |= {manifest.REPLICA_TYPE: "master", manifest.REPLICA_INDEX: "0"}
        state = {"containerStatuses": [{"name": PYTORCHJOB.container, "state": status}]}
        pod = parse.pod(
            {"metadata": {"uid": "pod", "labels": labels}, "spec": {"nodeName": "n"}, "status": state}, PYTORCHJOB
        )
        assert pod is not None
        self.inventory.put_pod(pod)

    # --- ObjectsApi, called in threads

    def create_workload(self, workload: Object) -> Object:
        return {**workload, "metadata": {**workload["metadata"], "uid": "made"}}

    def creations(self, objects: Objects, workload: Object) -> list[Callable[[], None]]:
        self._loop.call_soon_threadsafe(self._news.set)
        return []

    def delete_workload(self, name: str, uid: str, *, in_background: bool = False) -> None:
        self._loop.call_soon_threadsafe(self._remove_all)

    def _remove_all(self) -> None:
        self.inventory.list_pods(())
        self.inventory.list_workloads(())

    # --- PodLogs

    def follow(self, *_: Any) -> None: ...

    def forget(self, *_: Any) -> None: ...

    async def read_out(self, *_: Any) -> None: ...

    async def run(self) -> None:
        self._loop = asyncio.get_running_loop()
        await asyncio.wait_for(self.gang.run(), 60)

    def phases(self) -> list[tuple[str, Reason]]:
        return list(dict.fromkeys((seen.phase, seen.reason) for seen in self.said))


async def test_it_waits_runs_ends_and_is_removed(tmp_path: Path) -> None:
    site = Site(tmp_path)
    run = asyncio.create_task(site.run())
    await site.until(lambda: bool(site.said))
    site.put_pod(running={"startedAt": "2026-11-22T11:00:00Z"})
    await site.until(lambda: site.said[-1].phase == "running")
    site.put_pod(terminated={"exitCode": 0, "message": json.dumps(DIGEST)})
    await run
    assert site.phases() == [("waiting", Reason.QUEUED), ("running", Reason.RUNNING), ("ended", Reason.COMPLETED)]
    assert "logs come from the Kubernetes API alone" in site.said[-1].notes[0]
    assert site.inventory.workload(site.key) is None


async def test_a_stop_removes_its_objects(tmp_path: Path) -> None:
    site = Site(tmp_path)
    run = asyncio.create_task(site.run())
    await site.until(lambda: bool(site.said))
    site.gang.stop(1.0)
    await run
    assert site.phases()[-1] == ("ended", Reason.CANCELLED)


async def test_a_new_server_process_reports_the_same_end(tmp_path: Path) -> None:
    site = Site(tmp_path)
    run = asyncio.create_task(site.run())
    await site.until(lambda: bool(site.said))
    site.put_pod(terminated={"exitCode": 1, "reason": "Error", "message": ""})
    await run
    again = Site(tmp_path, never_started=False)
    await again.run()
    assert again.said == [site.said[-1]]
