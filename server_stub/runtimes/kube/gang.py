"""One attempt on a cluster: its objects made, followed to the end, judged and removed. `runtime` makes one per attempt.

Level, not edge: after each change everything that is known is looked at anew, so that a restart of the server is no
special case. What things mean is decided in `observe` and `runtimes.verdict`; what is done is in `acts`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Literal, TypeVar

from client_lib.errors import ClientLibError
from client_lib.spec.states import Reason
from client_lib.spec.wire import RankReport, WorkerInfo
from server_stub.runtimes import Attempt, Observation, attempt_dir, orders, verdict, worker_dir
from server_stub.runtimes.kube import facts, names, record
from server_stub.runtimes.kube.acts import Acts, Leaving, Taken
from server_stub.runtimes.kube.api import ApiError
from server_stub.runtimes.kube.catalogue import Catalogue
from server_stub.runtimes.kube.inventory import Inventory
from server_stub.runtimes.kube.needs import needs
from server_stub.runtimes.kube.objects import Object, Objects
from server_stub.runtimes.kube.observe import Seen, Sight, observe, taken_away
from server_stub.runtimes.kube.options import ClusterSettings
from server_stub.runtimes.kube.pod_log import PodLogs
from server_stub.runtimes.kube.record import Record
from server_stub.runtimes.kube.refusals import Patience, Refusal, refusal
from server_stub.runtimes.kube.render import Payload, needs_payload, render
from server_stub.runtimes.verdict import Stage, Step
from server_stub.workers import Gang as Opening
from server_stub.workers import WorkerDesk

DRAIN_S = 60.0  # the rest of a log that hasn't come so long after the pod's end never will
LEAVING_S = 30.0  # pods that succeeded end by themselves in less
LOOK_AGAIN_S = 15.0
FEW_TRIES = 5
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 15.0
FIRST_BACK_OFF_S, LONGEST_BACK_OFF_S = 30.0, 900.0

T = TypeVar("T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Cluster:
    """What all gangs share."""

    acts: Acts
    inventory: Inventory
    desk: WorkerDesk
    settings: ClusterSettings
    catalogue: Catalogue
    logs: PodLogs


class Gang:
    """The workers of one attempt. `tell` gets what is seen of it; the last thing is that it has ended."""

    def __init__(self, attempt: Attempt, cluster: Cluster, tell: Callable[[Observation], None]) -> None:
        self._attempt, self._cluster, self._tell = attempt, cluster, tell
        self._key = names.AttemptKey(attempt.job_id, attempt.number)
        self._name = names.object_name(attempt.job_name, attempt.number)
        self._folder = attempt_dir(attempt.job_dir, attempt.number)
        self._record = Record()
        self._dirty = asyncio.Event()
        self._stopped = False
        """Ordered by the service, before any worker failed."""
        self._failed = self._lost_first = False
        """A worker has failed; and the first that did was lost."""
        self._incomplete_since: float | None = None
        self._over_since: float | None = None
        self._read_tails: set[int] = set()
        self._taken_back = 0
        self._told: Observation | None = None

    # --- its life

    async def run(self) -> None:
        """From wherever it is to the end, and until nothing is left of it on the cluster."""
        if not self._attempt.fresh:
            self._record = await asyncio.to_thread(record.read, self._folder)
        self._cluster.inventory.follow(self._key, self._dirty.set)
        try:
            self._open_desk()
            if self._record.end is None:
                await self._to_its_end()
            self._cluster.desk.release(*self._id)
            assert self._record.end is not None
            self._tell(record.observation(*self._id, self._record.end))
            await self._clear_away()
            self._cluster.desk.close(*self._id)
        finally:
            self._cluster.inventory.forget(self._key)
            self._cluster.logs.forget(self._key)

    def stop(self, grace_s: float) -> None:
        """End every process of the attempt; the end is told when nothing lives any more."""
        self._stopped = self._stopped or not self._failed
        self._cluster.desk.stop(*self._id, grace_s)
        self._dirty.set()

    @property
    def _id(self) -> tuple[str, int]:
        return self._attempt.job_id, self._attempt.number

    def _open_desk(self) -> None:
        attempt, settings = self._attempt, self._cluster.settings
        wanted = needs(attempt.spec, self._cluster.catalogue)
        workers = (worker_dir(attempt.job_dir, attempt.number, number) for number in range(attempt.spec.n_workers))
        opening = Opening(
            job_id=attempt.job_id,
            job_name=attempt.job_name,
            attempt=attempt.number,
            folder=self._folder,
            workers=tuple(workers),
            processes_per_worker=wanted.processes,
            snapshot=attempt.snapshot,
            function=attempt.function,
            log_limit_bytes=orders.log_share(attempt.spec, settings.log_limit_bytes),
            segment_bytes=settings.segment_bytes,
        )
        self._cluster.desk.open(opening, self._dirty.set)

    async def _to_its_end(self) -> None:
        while True:
            end = await self._make() or await self._follow()
            if end is not None:
                await self._write(end=record.end_of(end))
                return
            await self._pause_after_taking_back()

    # --- made

    async def _make(self) -> Observation | None:
        """None: its objects are there, or were and are gone. Else why it ended without them."""
        if self._record.removed_because is not None:
            return None
        try:
            objects = await asyncio.to_thread(self._render)
        except ClientLibError as error:  # it was in order when it was accepted: the catalogue has changed
            return await self._give_up(Reason.START_FAILED, error.message)
        tries, pause_s = 0, FIRST_PAUSE_S
        while not self._stopped:
            try:
                await self._try_to_make(objects)
                return None
            except ApiError as error:
                tries += 1
                met = refusal(error.status, error.message, f"PyTorchJob {self._name}")
            except Leaving as leaving:
                met = Refusal(Reason.QUEUED, f"waits until {leaving}, which is being deleted, is gone", Patience.EVER)
            except Taken as taken:
                text = f"{taken} is there already, and not of this job: give the job another name"
                return await self._give_up(Reason.START_FAILED, text)
            if met.patience is Patience.NONE or (met.patience is Patience.FEW and tries >= FEW_TRIES):
                return await self._give_up(met.reason, met.message)
            self._say("waiting", met.reason, met.message)
            await self._pause(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        return await self._give_up(Reason.CANCELLED, "stopped while it waited", objects)

    def _render(self) -> Objects:
        attempt, cluster = self._attempt, self._cluster
        payload = Payload()
        if needs_payload(attempt, cluster.settings):
            payload = Payload(
                attempt.snapshot.read_bytes() if attempt.snapshot else None,
                attempt.function.read_bytes() if attempt.function else None,
            )
        token = cluster.desk.token(attempt.job_id, attempt.number)
        return render(attempt, cluster.settings, cluster.catalogue, token, payload)

    async def _try_to_make(self, objects: Objects) -> None:
        acts, uid = self._cluster.acts, self._record.uid
        if uid is None:
            job: Object | None = await asyncio.to_thread(acts.make_job, objects.job)
        else:
            job = await asyncio.to_thread(acts.find_job, self._name, uid)
        if job is None:  # it was there: `_follow` sees that it is gone
            return
        made = [asyncio.to_thread(make) for make in acts.rest(objects, job)]
        known = facts.training_job(job)
        if uid is None and known is not None:
            self._cluster.inventory.put_job(known)
            made.append(self._write(uid=known.uid))
        await asyncio.gather(*made)

    async def _give_up(self, reason: Reason, message: str, objects: Objects | None = None) -> Observation | None:
        """An end without a gang, unless its PyTorchJob was made: that has to go first."""
        if self._record.uid is None and objects is not None and not self._attempt.fresh:
            await self._find_own(objects)
        if self._record.uid is None:
            return self._observation("ended", reason, message, ended_at=datetime.now(timezone.utc))
        await self._remove(reason, message)
        return None

    async def _find_own(self, objects: Objects) -> None:
        """One that a server process before this one made, and had no time to write down."""
        found = await self._insist(lambda: self._cluster.acts.find_own(objects.job))
        if found is not None:
            await self._write(uid=found["metadata"]["uid"])

    # --- followed

    async def _follow(self) -> Observation | None:
        """How it ended; None: it was taken back, and is to be made anew."""
        while True:
            self._dirty.clear()
            sight = self._sight()
            seen = observe(sight)
            self._note_failures(seen)
            if self._record.removed_because is None:
                await self._act(sight, seen)
            await self._fetch_tails(sight, seen)
            if self._is_over(sight, seen):
                return self._end(sight, seen)
            if self._record.uid is None:
                return None
            self._say_how_it_stands(seen)
            await self._pause(self._next_look_s())

    def _sight(self) -> Sight:
        inventory = self._cluster.inventory
        speaks = self._cluster.settings.server_url is not None
        pods = inventory.pods(self._key)
        if not speaks:
            self._cluster.logs.follow(self._key, pods)
        return Sight(
            n_workers=self._attempt.spec.n_workers,
            job=inventory.job(self._key),
            pods=pods,
            events=inventory.events(self._key),
            views=self._cluster.desk.view(*self._id) if speaks else (),
        )

    def _note_failures(self, seen: Seen) -> None:
        failed = [worker for worker in seen.workers if worker.failed]
        if failed and not self._failed:
            self._failed = True
            self._lost_first = failed[0].stage is Stage.LOST

    async def _act(self, sight: Sight, seen: Seen) -> None:
        """While it isn't being removed: whether it has to be."""
        if sight.job is None and await self._is_gone():
            await self._write(removed_because=_words(taken_away(sight, self._name)))
        elif all(worker.stage.over for worker in seen.workers):
            return
        elif verdict.next_step(seen.workers, self._stopped) is Step.STOP:
            await self._fetch_tails(sight, seen)
            because = (Reason.CANCELLED, "stopped") if self._stopped else taken_away(sight, self._name)
            await self._remove(*because)
        elif seen.obstacle.hopeless:
            await self._remove(seen.obstacle.reason, seen.obstacle.message)
        elif self._is_overdue(seen):
            await self._take_back(seen)

    async def _is_gone(self) -> bool:
        """Whether its PyTorchJob is not there: the watch may not have brought it yet."""
        uid = self._record.uid
        if uid is None or not self._cluster.inventory.jobs_known:
            return False
        try:
            return await asyncio.to_thread(self._cluster.acts.find_job, self._name, uid) is None
        except ApiError:
            return False

    def _is_over(self, sight: Sight, seen: Seen) -> bool:
        """Nothing of it works any more, and whatever it had to say is here, or won't come."""
        lives = [pod for pod in sight.pods if not pod.over]
        all_over = all(worker.stage.over for worker in seen.workers)
        if not all_over and (self._record.removed_because is None or lives or sight.job is not None):
            return False
        if self._record.removed_because is not None and lives and not self._all_completed(seen):
            return False
        if all(view.drained or view.report is None for view in sight.views):
            return True
        now = asyncio.get_running_loop().time()
        self._over_since = self._over_since or (now if not lives else None)
        return self._over_since is not None and now - self._over_since > DRAIN_S

    @staticmethod
    def _all_completed(seen: Seen) -> bool:
        return all(worker.stage is Stage.ENDED and not worker.failed for worker in seen.workers)

    def _end(self, sight: Sight, seen: Seen) -> Observation:
        because = self._record.removed_because or _words(taken_away(sight, self._name))
        if all(worker.stage.over for worker in seen.workers):
            reason, message = verdict.verdict(seen.workers, self._stopped, self._lost_first)
            if reason is Reason.CANCELLED and not self._stopped:
                reason, message = Reason(because[0]), because[1]
        else:
            reason, message = (Reason.CANCELLED, "stopped") if self._stopped else (Reason(because[0]), because[1])
        ranks = tuple(rank for worker in seen.workers for rank in worker.ranks())
        when = verdict.ended_at(seen.workers) or datetime.now(timezone.utc)
        return self._observation("ended", reason, message, seen.infos, ranks, when, self._remarks(seen))

    def _next_look_s(self) -> float:
        now = asyncio.get_running_loop().time()
        if self._over_since is not None:
            return 1.0
        if self._incomplete_since is None:
            return LOOK_AGAIN_S
        due = self._incomplete_since + self._cluster.settings.gang_timeout_s - now
        return min(max(due, 0.1), LOOK_AGAIN_S)

    # --- removed

    async def _remove(self, reason: Reason, message: str) -> None:
        """Begin to delete its PyTorchJob; the pods get a SIGTERM and their grace period."""
        await self._write(removed_because=(reason.value, message))
        await self._delete()

    async def _delete(self) -> None:
        uid = self._record.uid
        if uid is not None:
            await self._insist(lambda: self._cluster.acts.delete_job(self._name, uid))

    async def _clear_away(self) -> None:
        """After its end: nothing of it stays on the cluster. Pods that have succeeded are given time to end."""
        loop = asyncio.get_running_loop()
        until = loop.time() + LEAVING_S
        while self._record.removed_because is None and loop.time() < until:
            self._dirty.clear()
            if all(pod.over for pod in self._cluster.inventory.pods(self._key)):
                break
            await self._pause(until - loop.time())
        await self._delete()
        await self._until_gone()

    async def _until_gone(self) -> None:
        uid = self._record.uid
        while uid is not None:
            self._dirty.clear()
            if self._cluster.inventory.job(self._key) is None and await self._is_gone():
                return
            await self._pause(LOOK_AGAIN_S)

    def _is_overdue(self, seen: Seen) -> bool:
        """The gang isn't complete for too long, pulls of images not counted."""
        now = asyncio.get_running_loop().time()
        complete = all(worker.stage is not Stage.STARTING for worker in seen.workers)
        if complete or seen.obstacle.reason is Reason.IMAGE_PULL or self._is_suspended():
            self._incomplete_since = None
            return False
        self._incomplete_since = self._incomplete_since or now
        return now - self._incomplete_since >= self._cluster.settings.gang_timeout_s

    def _is_suspended(self) -> bool:
        job = self._cluster.inventory.job(self._key)
        return job is not None and any(each.word == "Suspended" for each in job.conditions)

    async def _take_back(self, seen: Seen) -> None:
        """Give back what it holds, so that two gangs that have half of what they need don't wait for each other."""
        minutes = self._cluster.settings.gang_timeout_s / 60
        text = f"not complete within {minutes:.3g} min ({seen.obstacle.message}); it is taken back and queued again"
        self._say("waiting", Reason.UNSCHEDULABLE, text, seen.infos)
        await self._delete()
        await self._until_gone()
        self._cluster.inventory.drop_gone(self._key)
        self._cluster.desk.forget(*self._id)
        self._taken_back += 1
        self._incomplete_since = None
        await self._write(uid=None)

    async def _pause_after_taking_back(self) -> None:
        loop = asyncio.get_running_loop()
        back_off_s = min(FIRST_BACK_OFF_S * 2 ** (self._taken_back - 1), LONGEST_BACK_OFF_S)
        back_off_s = min(back_off_s, self._cluster.settings.gang_timeout_s)
        until = loop.time() + back_off_s
        self._say(
            "waiting", Reason.UNSCHEDULABLE, f"taken back as it was not complete; tries again in {back_off_s:.0f} s"
        )
        while not self._stopped and loop.time() < until:
            self._dirty.clear()
            await self._pause(until - loop.time())

    # --- the logs of those that died without a word

    async def _fetch_tails(self, sight: Sight, seen: Seen) -> None:
        for worker in seen.workers:
            pod = next((pod for pod in sight.pods if pod.worker == worker.number and not pod.gone), None)
            lost = worker.stage is Stage.LOST or (worker.stage.over and not self._spoke(sight, worker.number))
            if lost and pod is not None and pod.over and worker.number not in self._read_tails:
                self._read_tails.add(worker.number)
                await self._cluster.logs.read_tail(self._key, pod)

    @staticmethod
    def _spoke(sight: Sight, number: int) -> bool:
        return number < len(sight.views) and sight.views[number].report is not None

    # --- what it tells

    def _say_how_it_stands(self, seen: Seen) -> None:
        stages = {worker.stage for worker in seen.workers}
        if self._record.removed_because is not None:
            return
        if stages <= {Stage.STARTED, Stage.ENDED} and Stage.STARTED in stages:
            self._say("running", Reason.RUNNING, "", seen.infos, self._remarks(seen))
        elif Stage.STARTED not in stages:
            self._say("waiting", seen.obstacle.reason, seen.obstacle.message, seen.infos, seen.unknown)

    def _remarks(self, seen: Seen) -> tuple[str, ...]:
        views = self._cluster.desk.view(*self._id)
        missing = [f"{view.missing} lines of worker {view.worker} are lost" for view in views if view.missing]
        alone = "pods can't reach this server: their logs come from the Kubernetes API alone, which may lose lines"
        return (*seen.unknown, *missing, *([alone] if self._cluster.settings.server_url is None else []))

    def _say(
        self,
        phase: Literal["waiting", "running"],
        reason: Reason,
        message: str,
        infos: tuple[WorkerInfo, ...] = (),
        remarks: tuple[str, ...] = (),
    ) -> None:
        seen = self._observation(phase, reason, message, infos, remarks=remarks)
        if seen != self._told:
            self._told = seen
            self._tell(seen)

    def _observation(
        self,
        phase: Literal["waiting", "running", "ended"],
        reason: Reason,
        message: str,
        infos: tuple[WorkerInfo, ...] = (),
        ranks: tuple[RankReport, ...] = (),
        ended_at: datetime | None = None,
        remarks: tuple[str, ...] = (),
    ) -> Observation:
        return Observation(*self._id, phase, reason, message, infos, ranks, ended_at, remarks)

    # --- small

    async def _write(self, **changes: object) -> None:
        self._record = replace(self._record, **changes)  # type: ignore[arg-type]  # the fields of Record
        await asyncio.to_thread(record.write, self._folder, self._record)

    async def _pause(self, limit_s: float) -> None:
        """Until something changes."""
        try:
            await asyncio.wait_for(self._dirty.wait(), max(limit_s, 0.0))
        except asyncio.TimeoutError:
            pass

    async def _insist(self, act: Callable[[], T]) -> T:
        """Do it as often as it takes: what must not be left undone."""
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                return await asyncio.to_thread(act)
            except ApiError as error:
                _log.warning("%s: %s", self._name, error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def _words(because: tuple[Reason, str]) -> tuple[str, str]:
    return because[0].value, because[1]
