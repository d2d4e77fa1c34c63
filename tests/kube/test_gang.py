"""One attempt from its objects to its removal, on a cluster that is a table in memory."""

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from client_lib.spec.request import CodeInPlace, Submitter
from client_lib.spec.states import Reason
from server_stub.files.job_dirs import attempt_dir
from server_stub.files.room import Spare
from server_stub.runtimes import RAN_IMAGE, Observation
from server_stub.runtimes.kube import gang, names
from server_stub.runtimes.kube.api import ApiError
from server_stub.runtimes.kube.cluster import Cluster
from server_stub.runtimes.kube.gang import Gang
from server_stub.runtimes.kube.objects import Record
from server_stub.runtimes.kube.observe import ending
from server_stub.runtimes.kube.observe.inventory import Workload, parse_pod, parse_workload
from server_stub.runtimes.kube.options import ClusterOptions
from server_stub.runtimes.kube.pytorchjob import PYTORCHJOB, REPLICA_INDEX, REPLICA_TYPE
from server_stub.runtimes.kube.render import Objects
from server_stub.runtimes.kube.runtime import KubeRuntime
from server_stub.runtimes.kube.trainjob import TRAINJOB
from server_stub.runtimes.kube.workload import Object
from server_stub.worker_gateway.attempt import SILENT_S, WorkerRegistry
from server_stub.worker_gateway.worker import NOTICED_S, RemoteWorker, State
from tests.kit.bounds import Bounds
from tests.kit.worker_reports import report
from tests.kube.cases import CLUSTER, Builder, cluster_with, offering
from tests.kube.test_cluster import Recorded

pytestmark = pytest.mark.anyio
UNREACHED = cluster_with(worker_server_url=None)


class Site:
    """Stands for `ObjectsApi` and `PodLogs`, and for the cluster behind them."""

    kind = PYTORCHJOB

    def __init__(
        self,
        folder: Path,
        *,
        never_started: bool = True,
        settings: ClusterOptions = UNREACHED,
        n_workers: int = 1,
    ) -> None:
        spec = {"script": "true", "n_workers": n_workers}
        case = Builder(
            code=CodeInPlace(), submitter=Submitter(), cluster=settings, spec=spec
        ).build("x")
        self.attempt = replace(case.attempt, job_dir=folder, never_started=never_started)
        self.key = names.AttemptKey(self.attempt.job_id, self.attempt.number)
        registry = WorkerRegistry(
            folder / "key", lambda job_id, attempt: folder, Spare(folder / "spare")
        )
        cluster = Cluster.of(cast(Any, Recorded({}, {})), case.cluster, registry)
        self.registry = registry
        self.inventory = cluster.inventory
        self.inventory.take_list(PYTORCHJOB.name, ())
        self.said: list[Observation] = []
        self._news = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self.on_delete: Callable[[], None] = lambda: None
        self.on_removal = self._remove_all
        self.cluster = replace(cluster, objects=cast(Any, self), logs=cast(Any, self))
        self.gang = Gang(self.attempt, lambda _: self.cluster, self._take)

    def _take(self, seen: Observation) -> None:
        self.said.append(seen)
        self._news.set()

    async def until(self, true: Callable[[], bool]) -> None:
        while not true():
            self._news.clear()
            await asyncio.wait_for(self._news.wait(), 30)

    def put_pod(self, worker: int = 0, ends_by: str | None = None, **status: Any) -> None:
        labels = names.labels(self.key.job_id, self.key.attempt, "x")
        replica = ("worker", str(worker - 1)) if worker else ("master", "0")
        labels |= dict(zip((REPLICA_TYPE, REPLICA_INDEX), replica, strict=True))
        container = {
            "name": PYTORCHJOB.container,
            "state": status,
            "imageID": "docker-pullable://x@sha256:1",
        }
        state = {"containerStatuses": [container]}
        meta = {"uid": f"pod-{worker}", "labels": labels, "deletionTimestamp": ends_by}
        pod = parse_pod(
            {"metadata": meta, "spec": {"nodeName": "n"}, "status": state}, [PYTORCHJOB]
        )
        assert pod is not None
        self.inventory.put(pod)

    def workload(self) -> Workload:
        labels = names.labels(self.key.job_id, self.key.attempt, "x")
        found = parse_workload(
            {"metadata": {"name": "x", "uid": "made", "labels": labels}}, PYTORCHJOB
        )
        assert found is not None
        return found

    async def agent(self, worker: int, state: State, pod: str = "pod") -> RemoteWorker:
        """The worker, whose agent has just reported this state."""
        attempt = self.registry.admit(self.registry.token(self.key.job_id, self.key.attempt))
        found = await attempt.worker(worker, f"{pod}-{worker}", None)
        await attempt.report_state(found, state)
        return found

    def look(self) -> None:
        """Let the gang look at its state now, as it does every few seconds."""
        self.inventory.take_list(
            PYTORCHJOB.name, filter(None, [self.inventory.workload(self.key, "made")])
        )

    def says(self, text: str) -> Callable[[], bool]:
        return lambda: text in self.said[-1].message

    # --- ObjectsApi, called in threads

    def create_workload(self, workload: Object, owned: object = ()) -> Object:
        return {**workload, "metadata": {**workload["metadata"], "uid": "made"}}

    def creations(self, objects: Objects, workload: Object) -> list[Callable[[], None]]:
        self._loop.call_soon_threadsafe(self._news.set)
        return []

    def find_own(self, name: str, key: names.AttemptKey) -> Object | None:
        return None

    def delete_workload(self, name: str, uid: str, *, in_background: bool = False) -> None:
        self.on_delete()
        self._loop.call_soon_threadsafe(self.on_removal)

    def _remove_all(self) -> None:
        self.inventory.take_list("Pod", ())
        self.inventory.take_list(PYTORCHJOB.name, ())

    # --- PodLogs

    def follow(self, *_: Any) -> None: ...

    def forget(self, *_: Any) -> None: ...

    async def read_out(self, *_: Any) -> None: ...

    async def read_tail(self, *_: Any) -> None: ...

    async def run(self) -> None:
        await asyncio.wait_for(self.gang.run(), 60)

    def phases(self) -> list[tuple[str, Reason]]:
        return list(dict.fromkeys((seen.phase, seen.reason) for seen in self.said))


async def test_it_waits_runs_ends_and_is_removed(tmp_path: Path) -> None:
    site = Site(tmp_path)
    run = asyncio.create_task(site.run())
    await site.until(lambda: bool(site.said))
    site.put_pod(running={"startedAt": "2026-11-22T11:00:00Z"})
    await site.until(lambda: site.said[-1].phase == "running")
    site.put_pod(terminated={"exitCode": 0, "message": json.dumps(report())})
    await run
    assert site.phases() == [
        ("waiting", Reason.QUEUED),
        ("running", Reason.RUNNING),
        ("ended", Reason.COMPLETED),
    ]
    image, logs = site.said[-1].notes
    assert image == f"{RAN_IMAGE}x@sha256:1"
    assert "logs come from the Kubernetes API alone" in logs
    assert site.inventory.workload(site.key, "made") is None


async def test_a_stop_removes_its_objects(tmp_path: Path) -> None:
    site = Site(tmp_path)
    run = asyncio.create_task(site.run())
    await site.until(lambda: bool(site.said))
    site.gang.stop(1.0)
    await run
    assert site.phases()[-1] == ("ended", Reason.CANCELLED)


async def test_a_copy_of_its_workload_that_somebody_makes_does_not_keep_it_from_being_stopped(
    tmp_path: Path,
) -> None:
    """`kubectl get -o yaml`, another name, `kubectl create`: the copy has
    the labels of the attempt.
    """
    site = Site(tmp_path)
    copy = replace(site.workload(), name="copy", uid="copy", created_at="2026-11-22T11:00:00Z")
    run = asyncio.create_task(site.run())
    await site.until(lambda: bool(site.said))
    site.inventory.put(copy)
    site.on_removal = lambda: site.inventory.take_list(PYTORCHJOB.name, [copy])
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


# --- servers that are killed, and rights that are lost


async def test_a_new_server_process_deletes_what_the_one_before_was_about_to_delete(
    tmp_path: Path,
) -> None:
    site = Site(tmp_path, never_started=False)
    removed = Record("made", "x", (Reason.CANCELLED, "stopped"), None, PYTORCHJOB.name, "jobs")
    removed.write(attempt_dir(tmp_path, site.key.attempt))
    site.inventory.put(site.workload())
    site.put_pod(running={"startedAt": "2026-11-22T11:00:00Z"})
    site.gang.stop(1.0)
    await site.run()
    assert site.phases()[-1] == ("ended", Reason.CANCELLED)


async def test_a_stopped_attempt_whose_objects_are_gone_ends_though_the_server_has_lost_its_rights(
    tmp_path: Path, bounds: Bounds
) -> None:
    """This happens if its namespace is deleted, with the server's Role in it."""

    def refuse() -> None:
        site._loop.call_soon_threadsafe(site.on_removal)
        raise ApiError(403, "forbidden")

    bounds(gang, DELETE_S=0.1)
    site = Site(tmp_path)
    site.on_delete = refuse
    run = asyncio.create_task(site.run())
    await site.until(lambda: bool(site.said))
    site.gang.stop(1.0)
    await site.until(lambda: site.said[-1].phase == "ended")
    assert site.said[-1].reason is Reason.CANCELLED
    run.cancel()


async def test_what_is_left_of_an_attempt_that_ended_while_the_server_had_no_rights_is_deleted(
    tmp_path: Path,
) -> None:
    site = Site(tmp_path, settings=cluster_with(data_dir=tmp_path))
    deleted = threading.Event()
    site.on_delete = deleted.set
    folder = site.cluster.options.settings.data_dir / "jobs" / site.key.job_id
    end = Observation(*site.key, "ended", Reason.CANCELLED, "stopped while it waited")
    Record(end=end).write(attempt_dir(folder, site.key.attempt))
    await KubeRuntime(site.cluster)._remove_if_ended(site.cluster, site.workload())
    assert deleted.is_set()


# --- agents that fall silent


async def gang_of_two(
    folder: Path, *states: State
) -> tuple[Site, asyncio.Task[None], list[RemoteWorker]]:
    """A gang on its cluster whose agents have reported these states, its task and its workers."""
    site = Site(folder, settings=CLUSTER, n_workers=2)
    run = asyncio.create_task(site.run())
    await site.until(lambda: bool(site.said))
    for worker in (0, 1):
        site.put_pod(worker, running={"startedAt": "2026-11-22T11:00:00Z"})
        await site.agent(worker, "ready")
    workers = [await site.agent(worker, state) for worker, state in enumerate(states)]
    return site, run, workers


async def ended_with(site: Site, worker: int, log_end_seq: int = 0) -> None:
    found = await site.agent(worker, "started")
    attempt = site.registry.admit(site.registry.token(site.key.job_id, site.key.attempt))
    await attempt.take_report(found, cast(Any, report(worker, log_end_seq=log_end_seq)))


async def test_a_complete_gang_whose_agent_never_starts_its_ranks_is_queued_again(
    tmp_path: Path,
) -> None:
    site, run, workers = await gang_of_two(tmp_path, "ready", "ready")
    workers[1].last_contact -= NOTICED_S + 1
    site.look()
    silent = (
        "worker 1 has been silent for more than 2 min: its node or agent hangs, or can't reach "
        "this server"
    )
    await site.until(site.says(f"2 of 2 workers are prepared; {silent}"))
    workers[1].last_contact -= SILENT_S
    recorded = list[str | None]()
    site.on_delete = lambda: recorded.append(
        Record.read(attempt_dir(tmp_path, site.key.attempt), site.key).uid
    )
    site.look()
    await site.until(
        site.says(
            "taken back, tries again in 30 s: prepared, and not started: worker 1 has been silent"
        )
    )
    # a server that is killed now goes on with it: nobody else has deleted its workload
    assert recorded == [None]
    site.gang.stop(1.0)
    await run


async def test_an_attempt_that_a_killed_server_took_back_gives_new_pods_the_places_of_the_old_ones(
    tmp_path: Path,
) -> None:
    site, run, _ = await gang_of_two(tmp_path, "ready", "ready")
    run.cancel()
    Record(None, "x", None, None, PYTORCHJOB.name, "jobs").write(
        attempt_dir(tmp_path, site.key.attempt)
    )
    again = Site(tmp_path, never_started=False, settings=CLUSTER, n_workers=2)
    run = asyncio.create_task(again.run())
    await again.until(lambda: bool(again.said))
    await again.agent(0, "ready", pod="new")
    again.gang.stop(1.0)
    await run


async def test_an_attempt_that_is_taken_back_from_a_lost_node_can_be_stopped(
    tmp_path: Path, bounds: Bounds
) -> None:
    """The node keeps the pod, and the pod keeps the workload."""
    bounds(ending, SLACK_S=0.1)
    site, run, workers = await gang_of_two(tmp_path, "ready", "ready")

    def remove_all_but_one() -> None:
        at = "2026-11-22T11:00:00Z"
        site.inventory.put(replace(site.workload(), ends_by=at))
        site.put_pod(1, at)
        site.inventory.take_list(
            "Pod", [pod for pod in site.inventory.pods(site.key) if pod.worker == 1]
        )

    site.on_removal = remove_all_but_one
    workers[1].last_contact -= SILENT_S + 1
    site.look()
    await site.until(site.says("is taken back and queued again"))
    site.gang.stop(1.0)
    await site.until(lambda: site.said[-1].phase == "ended")
    assert site.said[-1].reason is Reason.CANCELLED
    run.cancel()


async def test_an_agent_that_is_silent_while_its_peers_run_is_named_and_ends_nothing(
    tmp_path: Path,
) -> None:
    site, run, workers = await gang_of_two(tmp_path, "started", "started")
    workers[1].last_contact -= 2 * SILENT_S
    site.look()
    await site.until(site.says("worker 1 has been silent"))
    assert site.said[-1].phase == "running"
    assert [worker.threads for worker in site.said[-1].workers] == [2, 2]
    await ended_with(site, 0)
    await run
    assert (site.said[-1].phase, site.said[-1].reason) == ("ended", Reason.NODE_LOST)
    assert site.said[-1].message.startswith("worker 1 has been silent for more than 10 min")


async def test_an_agent_that_does_not_start_while_its_peer_does_ends_the_attempt(
    tmp_path: Path,
) -> None:
    site, run, workers = await gang_of_two(tmp_path, "started", "ready")
    workers[1].last_contact -= SILENT_S + 1
    site.look()
    await run
    assert site.phases()[-1] == ("ended", Reason.NODE_LOST)


async def test_a_log_that_stays_behind_is_given_up_and_the_message_says_so(
    tmp_path: Path, bounds: Bounds
) -> None:
    bounds(ending, SILENT_S=0.1)
    site, run, _ = await gang_of_two(tmp_path, "started", "started")
    for worker in (0, 1):
        await ended_with(site, worker, log_end_seq=5)
    await site.until(site.says("every rank has ended, the rest of the logs is on its way"))
    await asyncio.sleep(0.2)
    site.look()
    await site.until(lambda: site.said[-1].phase == "ended")
    for worker in (0, 1):
        site.put_pod(worker, terminated={"exitCode": 0, "message": json.dumps(report())})
    await run
    assert (site.said[-1].phase, site.said[-1].reason) == ("ended", Reason.COMPLETED)
    assert site.said[-1].message.endswith("; 10 lines of all 2 workers are lost")


async def test_an_attempt_over_which_the_server_fails_is_told_and_tried_again(
    tmp_path: Path, bounds: Bounds
) -> None:
    """Its record is of a later version, and then it is not any more."""
    bounds("server_stub.runtimes.kube.runtime", DISK_PAUSE_S=0.05)
    site = Site(tmp_path, never_started=False)
    folder = attempt_dir(tmp_path, site.key.attempt)
    folder.mkdir(parents=True)
    end = Observation(*site.key, "ended", Reason.COMPLETED, "fine")
    Record("made", end=end).write(folder)
    written = (folder / "attempt.json").read_text()
    (folder / "attempt.json").write_text(written.replace('"Completed"', '"Later"'))
    runtime = KubeRuntime(site.cluster)
    runtime._sink = site._take
    runtime.submit(site.attempt)
    await site.until(lambda: bool(site.said))
    assert (site.said[0].phase, site.said[0].reason) == ("waiting", Reason.SERVER_ERROR)
    assert "can't be read: end.reason='Later'" in site.said[0].notes[0]
    (folder / "attempt.json").write_text(written)
    await site.until(lambda: site.said[-1].phase == "ended")
    assert site.said[-1].reason is Reason.COMPLETED
    await runtime.close()


class TrainJobsAlone(Recorded):
    """A cluster that has no kind but TrainJob, and that says so only once until it is released."""

    def __init__(self) -> None:
        super().__init__({}, {})
        self._asked: set[str] = set()
        self.released = threading.Event()

    def get(self, path: str, query: Any = None) -> Any:
        if path.count("/") > 3:
            return super().get(path, query)
        if path in self._asked:
            self.released.wait(30)
        self._asked.add(path)
        if TRAINJOB.group not in path:
            raise ApiError(404, "there is no such group")
        return {"resources": [{"name": TRAINJOB.plural}]}

    def request(self, *_: Any, **__: Any) -> Any:
        raise ApiError(403, "it may not")


async def test_jobs_of_teams_have_the_kind_of_the_cluster_as_soon_as_the_server_has_started(
    tmp_path: Path,
) -> None:
    api = TrainJobsAlone()
    cluster = Cluster.of(cast(Any, api), offering(job_kind="auto"), cast(Any, None), [TRAINJOB])
    runtime = KubeRuntime(cluster, namespaces=["vision"])
    await runtime.start(lambda seen: None)
    try:
        assert [runtime._in(namespace).kind for namespace in (None, "vision")] == [
            TRAINJOB,
            TRAINJOB,
        ]
    finally:
        api.released.set()
        await runtime.close()


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (403, "namespace jobs takes no PyTorchJob of this server"),
        (503, "what namespace jobs takes is unknown"),
    ],
)
async def test_a_cluster_that_does_not_answer_is_not_said_to_take_no_jobs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, status: int, said: str
) -> None:
    class Failing(Recorded):
        def request(self, *_: Any, **__: Any) -> Any:
            raise ApiError(status, "not now")

    cluster = Cluster.of(
        cast(Any, Failing({}, {})), offering(job_kind="pytorchjob"), cast(Any, None)
    )
    await KubeRuntime(cluster)._look_around(cluster.options.namespace)
    assert said in caplog.text
