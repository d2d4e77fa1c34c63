"""How often the creation of an attempt's objects is repeated, by the answers of the API server, how
many attempts that have ended are removed at once, and the tokens of the first attempts."""

import asyncio
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from client_lib.spec.states import Reason
from server_stub.files.room import Spare
from server_stub.runtimes import Observation
from server_stub.runtimes.kube import api, objects
from server_stub.runtimes.kube.api import ApiError
from server_stub.runtimes.kube.cluster import REMOVALS_AT_ONCE, Cluster
from server_stub.runtimes.kube.gang import Gang
from server_stub.runtimes.kube.names import AttemptKey
from server_stub.runtimes.kube.objects import AttemptObjects, Record
from server_stub.runtimes.kube.objects_api import NameTaken
from server_stub.runtimes.kube.pytorchjob import PYTORCHJOB
from server_stub.runtimes.kube.render import Objects
from server_stub.runtimes.kube.trainjob import TRAINJOB
from server_stub.runtimes.kube.workload import Object, WorkloadKind
from server_stub.worker_gateway.attempt import WorkerRegistry
from tests.kit.bounds import Bounds
from tests.kit.waiting import eventually
from tests.kube.cases import CLUSTER, Builder

pytestmark = pytest.mark.anyio


class Answers:
    """Answers each try to create the workload with the next of these, and
    then always with the last.
    """

    def __init__(self, *answers: ApiError | None) -> None:
        self._answers = list(answers)
        self.tries = 0
        self.bases: list[Object] = []
        self.left: dict[str, str] = {}
        """Workloads that an earlier server process has created: name and UID."""
        self.deleted: list[tuple[str, str]] = []
        self.is_hidden = False
        self.at_try: Callable[[], None] = lambda: None
        self.at_creations: list[Callable[[], None]] = []

    def create_workload(self, job: Object, owned: object = ()) -> Object:
        self.tries += 1
        self.at_try()
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if answer is not None:
            raise answer
        return {**job, "metadata": {**job["metadata"], "uid": "made"}}

    def create_base(self, base: Object) -> None:
        self.bases.append(base)

    def explained(self, error: ApiError) -> ApiError:
        return error

    def creations(self, objects: Objects, job: Object) -> list[Callable[[], None]]:
        return self.at_creations

    def find_own(self, name: str, key: AttemptKey) -> Object | None:
        if self.is_hidden:
            raise ApiError(403, "forbidden")
        uid = self.left.get(name)
        return None if uid is None else {"metadata": {"uid": uid}}

    def delete_workload(self, name: str, uid: str, *, in_background: bool) -> None:
        self.deleted.append((name, uid))


class Site:
    """One attempt that is made there; waiting takes no time, and is counted."""

    def __init__(
        self, folder: Path, *answers: ApiError | None, kind: WorkloadKind = PYTORCHJOB
    ) -> None:
        case = Builder().build("train")
        self.api = Answers(*answers)
        self.said: list[Observation] = []
        self.waited_s = 0.0
        api: Any = self.api
        registry = WorkerRegistry(
            folder / "key", lambda job_id, attempt: folder, Spare(folder / "spare")
        )
        cluster = replace(
            Cluster.of(cast(Any, None), replace(case.cluster, kind=kind), registry), objects=api
        )
        self.attempt, self.cluster = case.attempt, cluster
        self._gang = Gang(
            replace(case.attempt, job_dir=folder), lambda _: cluster, self.said.append
        )
        self._gang._pause = self._pause  # type: ignore[method-assign]  # it takes no time
        self._gang._objects = AttemptObjects(case.attempt, cluster, Record(), asyncio.Event())

    async def _pause(self, limit_s: float) -> None:
        self.waited_s += limit_s
        self._gang.stopped = self.waited_s > self._limit_s

    async def make(self, limit_s: float = 3600.0) -> Observation | None:
        self._limit_s = limit_s
        return await self._gang._create()

    def stop(self) -> None:
        self._gang.stop(0.0)

    @property
    def record(self) -> Record:
        return self._gang._record


@pytest.mark.parametrize(
    ("status", "text"), [(403, "forbidden: User x"), (404, "could not find the resource")]
)
async def test_a_server_that_lacks_something_waits_for_it_however_long(
    tmp_path: Path, status: int, text: str
) -> None:
    """An API server refuses valid users just after its start, and an administrator may mend what
    this server lacks.
    """
    site = Site(tmp_path, *[ApiError(status, text)] * 200, None)
    assert await site.make() is None
    assert (site.api.tries, site.record.uid) == (201, "made")
    assert {seen.reason for seen in site.said} == {Reason.QUEUED}
    assert text in site.said[0].message
    assert site._gang.lacks == ""


async def test_an_attempt_takes_the_kind_that_the_server_finds_after_it_began(
    tmp_path: Path,
) -> None:
    """The cluster has TrainJobs alone, and did not answer when the server started."""

    def refuse(path: str) -> Object:
        raise ApiError(404, "could not find the resource")

    site = Site(tmp_path, ApiError(404, "could not find the resource"))
    trainer, options = Answers(None), replace(site.cluster.options, kind=TRAINJOB)
    api, objects = cast(Any, SimpleNamespace(get=refuse)), cast(Any, trainer)
    found = replace(site.cluster, api=api, options=options, objects=objects)
    site._gang._in_namespace = lambda _: found
    assert await site.make() is None
    assert (site.record.kind, site.record.uid) == (TRAINJOB.name, "made")
    assert (site.api.tries, trainer.tries) == (1, 1)


async def test_an_attempt_of_an_earlier_version_that_takes_the_other_kind_stays_in_its_namespace(
    tmp_path: Path,
) -> None:
    """That version did not record the namespace."""
    site = Site(tmp_path, ApiError(404, "could not find the resource"))
    wanted = list[str | None]()

    def in_namespace(namespace: str | None) -> Cluster:
        wanted.append(namespace)
        return site.cluster

    site._gang._in_namespace, site._gang._record = in_namespace, Record(kind=PYTORCHJOB.name)
    await site.make()
    assert set(wanted) == {site.cluster.options.namespace}


async def test_what_can_not_become_better_is_given_up_at_once(tmp_path: Path) -> None:
    site = Site(tmp_path, ApiError(422, "spec.x: Invalid value"))
    given_up = await site.make()
    assert given_up is not None
    assert "spec.x: Invalid value" in given_up.message
    assert (site.api.tries, site.waited_s, site.said) == (1, 0.0, [])


# Kueue's
@pytest.mark.parametrize(
    "said", ['"{}" not found: it must be created before', "runtime '{}' not found"]
)
async def test_a_runtime_that_is_missing_is_made_and_waited_for(tmp_path: Path, said: str) -> None:
    base = Builder().build("train").objects(TRAINJOB).base
    assert base is not None
    name = base["metadata"]["name"]
    site = Site(
        tmp_path,
        ApiError(403, f'admission webhook "x" denied the request: {said.format(name)}'),
        None,
        kind=TRAINJOB,
    )
    assert await site.make() is None
    assert site.api.bases == [base]
    waits = f"waits until Kubeflow Trainer knows TrainingRuntime {name}"
    assert [(seen.reason, seen.message) for seen in site.said] == [(Reason.QUEUED, waits)]


async def test_a_cluster_that_is_away_is_waited_for_however_long(tmp_path: Path) -> None:
    site = Site(tmp_path, *[ApiError(0, "refused")] * 200, None)
    assert await site.make() is None
    assert site.api.tries == 201
    assert site.record.uid == "made"
    assert {seen.reason for seen in site.said} == {Reason.QUEUED}


async def test_who_is_told_to_stop_while_it_waits_leaves_nothing(tmp_path: Path) -> None:
    site = Site(tmp_path, ApiError(503, "away"))
    end = await site.make(limit_s=60.0)
    assert end is not None
    assert (end.phase, end.reason, end.message) == (
        "ended",
        Reason.CANCELLED,
        "stopped while it waited",
    )
    assert site.record.uid is None


async def test_who_is_told_to_stop_during_a_try_does_not_wait(tmp_path: Path) -> None:
    site = Site(tmp_path, ApiError(503, "away"))
    site.api.at_try = site.stop
    end = await site.make()
    assert end is not None
    assert (end.reason, site.api.tries, site.waited_s) == (Reason.CANCELLED, 1, 0.0)


@pytest.mark.parametrize("owner", [None, Builder().build("train").attempt.owner])
async def test_who_is_told_to_stop_before_a_try_removes_what_a_killed_server_created(
    tmp_path: Path, owner: str | None
) -> None:
    site = Site(tmp_path, None)
    name = site.cluster.name_of(site.attempt, owner)
    site.api.left = {name: "left"}
    site.stop()
    assert await site.make() is None  # its pods may still run: the gang follows them to their end
    assert site.api.tries == 0
    assert (site.record.name, site.record.uid) == (name, "left")
    assert site.record.removed_because == (Reason.CANCELLED, "stopped while it waited")
    assert site.api.deleted == [(name, "left")]


async def test_one_that_may_not_look_for_its_workload_any_more_can_be_stopped(
    tmp_path: Path, bounds: Bounds
) -> None:
    """This happens if its namespace is deleted, with the server's Role in it."""
    bounds(api, FIRST_PAUSE_S=0.0)
    site = Site(tmp_path, ApiError(403, "forbidden"))
    site.api.is_hidden = True
    site.stop()
    end = await asyncio.wait_for(site.make(), 10)
    assert end is not None
    assert (end.phase, end.reason) == ("ended", Reason.CANCELLED)


async def test_a_workload_that_exists_keeps_its_name_though_another_owns_what_its_pods_mount(
    tmp_path: Path,
) -> None:
    def taken() -> None:
        raise NameTaken("ConfigMap train-plan", AttemptKey("of-another-job", 1))

    site = Site(tmp_path, None)
    site.api.at_creations = [taken]
    assert await site.make() is None  # it is removed
    assert (site.record.name, site.api.tries, site.api.deleted) == ("train", 1, [("train", "made")])
    assert site.record.removed_because is not None
    assert (
        "ConfigMap train-plan is there already, and not of this job"
        in site.record.removed_because[1]
    )


# --- removal


async def test_a_few_have_their_turn_and_the_others_follow() -> None:
    deleted, unused = list[int](), cast(Any, None)
    usual = Cluster.of(unused, CLUSTER, unused)

    async def remove(number: int) -> None:
        def delete(name: str, uid: str, **_: Any) -> None:
            deleted.append(number)

        objects: Any = SimpleNamespace(kind=PYTORCHJOB, delete_workload=delete)
        attempt, changed = (
            replace(Builder().build("train").attempt, job_id=str(number)),
            asyncio.Event(),
        )
        usual.inventory.follow(AttemptKey(attempt.job_id, attempt.number), changed.set)
        created = AttemptObjects(
            attempt, replace(usual, objects=objects), Record("uid", "train"), changed
        )
        await created.remove_after_end(lambda: ())

    tasks = [asyncio.create_task(remove(number)) for number in range(2 * REMOVALS_AT_ONCE)]
    await eventually(lambda: len(deleted) >= REMOVALS_AT_ONCE)
    await asyncio.sleep(0.5)  # time for more, of which there must be none
    assert sorted(deleted) == list(range(REMOVALS_AT_ONCE))
    usual.inventory.take_list(PYTORCHJOB.name, ())  # none is there any more
    await asyncio.wait_for(asyncio.gather(*tasks), 10)
    assert sorted(deleted) == list(range(2 * REMOVALS_AT_ONCE))


async def test_a_deletion_that_is_refused_keeps_no_turn_of_others(
    bounds: Bounds,
) -> None:
    """This happens if an administrator deletes the namespace of a team,
    with the server's Role in it.
    """
    bounds(objects, TURN_S=0.1)
    deleted, unused = list[str](), cast(Any, None)

    def delete(name: str, uid: str, **_: Any) -> None:
        if name == "refused":
            raise ApiError(403, "forbidden")
        deleted.append(name)

    cluster = replace(
        Cluster.of(unused, CLUSTER, unused),
        objects=cast(Any, SimpleNamespace(delete_workload=delete)),
    )
    names = ["refused"] * REMOVALS_AT_ONCE + ["other"]
    removals = [
        AttemptObjects(Builder().build("x").attempt, cluster, Record("u", each), asyncio.Event())
        for each in names
    ]
    tasks = [asyncio.create_task(each.remove_after_end(lambda: ())) for each in removals]
    await eventually(lambda: deleted == ["other"])
    for task in tasks:
        task.cancel()


async def test_the_first_attempts_of_a_new_server_have_tokens_that_are_valid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(size: int) -> bytes:
        time.sleep(0.1)
        return os.urandom(size)

    async def create(job_id: str) -> str:
        attempt = replace(Builder().build("train").attempt, job_id=job_id)
        created = AttemptObjects(attempt, site.cluster, Record(), asyncio.Event())
        assert await created.try_to_create() is None
        assert created._rendered is not None
        return str(created._rendered.own["secret"]["stringData"]["token"])

    # a source of randomness that lets the others begin
    monkeypatch.setattr(secrets, "token_bytes", slow)
    site, job_ids = Site(tmp_path, None), ["1", "2", "3"]
    tokens = await asyncio.gather(*map(create, job_ids))
    by_file = WorkerRegistry(tmp_path / "key", lambda *_: tmp_path, Spare(tmp_path / "spare"))
    assert tokens == [by_file.token(job_id, 1) for job_id in job_ids]
