"""One attempt on a cluster: its objects made, followed to the end, judged and removed. `runtime` makes one per attempt.

Level, not edge: after each change everything that is known is looked at anew, so that a restart of the server is no
special case. What things mean is decided in `observe` and `runtimes.verdict`; what is done is in `acts`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Literal

from client_lib.spec.states import Reason
from client_lib.spec.wire import RankReport, WorkerInfo
from server_stub.runtimes import Attempt, Observation, attempt_dir, outputs, verdict
from server_stub.runtimes.kube import ending, facts, leaving, names, record
from server_stub.runtimes.kube.acts import Acts
from server_stub.runtimes.kube.api import ApiError
from server_stub.runtimes.kube.asking import asked
from server_stub.runtimes.kube.catalogue import Catalogue
from server_stub.runtimes.kube.elastic import Losses
from server_stub.runtimes.kube.inventory import Inventory
from server_stub.runtimes.kube.making import Making, insist
from server_stub.runtimes.kube.observe import Seen, Sight, observe, taken_away
from server_stub.runtimes.kube.opening import opening
from server_stub.runtimes.kube.options import ClusterSettings
from server_stub.runtimes.kube.pod_log import PodLogs
from server_stub.runtimes.kube.record import Record
from server_stub.runtimes.kube.refusals import Refusal
from server_stub.runtimes.kube.remarks import remarks
from server_stub.runtimes.kube.removals import Removals
from server_stub.runtimes.verdict import Stage, Step
from server_stub.workers import WorkerDesk

DRAIN_S = 60.0  # the rest of a log that hasn't come so long after the pod's end never will
EXPLAINED_S = 5.0  # a watch is not so late
LEAVING_S = 30.0  # pods that succeeded end by themselves in less
TURN_S = 30.0  # what somebody's finalizer holds lets others pass
LOOK_AGAIN_S = 15.0
FIRST_BACK_OFF_S, LONGEST_BACK_OFF_S = 30.0, 900.0


@dataclass(frozen=True)
class Cluster:
    """What all gangs share."""

    acts: Acts
    inventory: Inventory
    desk: WorkerDesk
    settings: ClusterSettings
    catalogue: Catalogue
    logs: PodLogs
    removals: Removals


class Gang:
    """The workers of one attempt. `tell` gets what is seen of it; the last thing is that it has ended."""

    def __init__(self, attempt: Attempt, cluster: Cluster, tell: Callable[[Observation], None]) -> None:
        self._attempt, self._cluster, self._tell = attempt, cluster, tell
        self._key = names.AttemptKey(attempt.job_id, attempt.number)
        self._folder = attempt_dir(attempt.job_dir, attempt.number)
        self._record = Record()
        self._leaving = leaving.Leaving()
        self._doomed = False
        """The pod of a worker is being deleted, and no other one can take its place."""
        self._dirty = asyncio.Event()
        self.stopped = False
        """Ordered by the service, before any worker failed."""
        self._failed = self._lost_first = False
        """A worker has failed; and the first that did was lost."""
        self._blame: tuple[Reason, str] | None = None
        """What was first seen to be taken away of it, before the operator and we remove the rest."""
        self._unexplained_since: float | None = None
        self._incomplete_since: float | None = None
        self._over_since: float | None = None
        self._read_tails: set[str] = set()
        self._losses = Losses(attempt.spec)
        self._taken_back, self._taken_back_because = 0, ""
        self._told: Observation | None = None

    # --- its life

    async def run(self) -> None:
        """From wherever it is to the end, and until nothing is left of it on the cluster."""
        if not self._attempt.fresh:
            self._record = await asyncio.to_thread(record.read, self._folder)
        self._cluster.inventory.follow(self._key, self._dirty.set)
        try:
            cluster = self._cluster
            cluster.desk.open(opening(self._attempt, cluster.settings, cluster.catalogue), self._dirty.set)
            if self._record.end is None:
                await self._to_its_end()
            cluster.desk.release(*self._id)
            assert self._record.end is not None
            self._tell(record.observation(*self._id, self._record.end))
            with cluster.removals.ended(self._key):
                await self._clear_away()
            cluster.desk.close(*self._id)
        finally:
            self._cluster.inventory.forget(self._key)
            self._cluster.logs.forget(self._key)

    def stop(self, grace_s: float) -> None:
        """End every process of the attempt; the end is told when nothing lives any more."""
        self.stopped = self.stopped or not self._failed
        self._cluster.desk.stop(*self._id, grace_s)
        self._dirty.set()

    @property
    def _name(self) -> str:
        """Of its PyTorchJob."""
        return self._record.name or names.object_name(self._attempt.job_name, self._attempt.number)

    @property
    def _id(self) -> tuple[str, int]:
        return self._attempt.job_id, self._attempt.number

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
        cluster = self._cluster
        making = Making(
            self._attempt,
            cluster.settings,
            cluster.catalogue,
            cluster.acts,
            cluster.removals.__contains__,
            self._made,
            self._say_refused,
            self._pause,
        )
        token = cluster.desk.token(*self._id)
        given_up = await making.make(token, self._record, lambda: self.stopped)
        if given_up is None:
            return None
        if given_up.uid is None:
            return self._observation("ended", given_up.reason, given_up.message, ended_at=datetime.now(timezone.utc))
        await self._write(uid=given_up.uid, name=making.name)
        await self._remove(given_up.reason, given_up.message)
        return None

    async def _made(self, job: facts.TrainingJob) -> None:
        self._cluster.inventory.put_job(job)
        await self._write(uid=job.uid, name=job.name)

    def _say_refused(self, met: Refusal) -> None:
        self._dirty.clear()
        self._say("waiting", met.reason, met.message)

    # --- followed

    async def _follow(self) -> Observation | None:
        """How it ended; None: it was taken back, and is to be made anew."""
        while True:
            self._dirty.clear()
            whole = self._sight()
            all_seen = observe(whole)
            sight, seen = self._counted(whole, all_seen)
            self._note(sight, seen)
            if self._record.removed_because is None:
                await self._act(sight, seen)
            await self._fetch_tails(whole, all_seen)
            if self._is_over(sight if self._record.removed_because is None else whole, seen):
                return await self._end(sight, seen)
            if self._record.uid is None:
                return None
            self._say_how_it_stands(seen)
            await self._pause(self._next_look_s())

    def _sight(self) -> Sight:
        inventory = self._cluster.inventory
        speaks = self._cluster.settings.server_url is not None
        pods = self._pods()
        if not speaks:
            self._cluster.logs.follow(self._key, pods)
        return Sight(
            n_workers=self._attempt.spec.n_workers,
            job=inventory.job(self._key),
            pods=pods,
            events=inventory.events(self._key),
            views=self._cluster.desk.view(*self._id) if speaks else (),
        )

    def _counted(self, sight: Sight, seen: Seen) -> tuple[Sight, Seen]:
        stopping = self.stopped or self._record.removed_because is not None
        return self._losses.counted(sight, seen, began=self._cluster.desk.begun(*self._id), stopping=stopping)

    def _pods(self) -> tuple[facts.Pod, ...]:
        return self._leaving.look(self._cluster.inventory.pods(self._key), asyncio.get_running_loop().time())

    def _note(self, sight: Sight, seen: Seen) -> None:
        touched = any(pod.gone or pod.deleting for pod in sight.pods) or (sight.job is not None and sight.job.deleting)
        failed = [worker for worker in seen.workers if worker.failed]
        if self._losses.bounds is not None and not failed:  # whoever was taken away before was not missed
            self._blame = None
        if touched and self._blame is None and self._record.removed_because is None:
            self._blame = taken_away(sight, self._name)
        if not self._doomed and leaving.takes_a_worker(sight.pods, sight.views):
            self._doomed = self._losses.bounds is None
            if self._doomed:  # the kubelet does the same, if it lives
                self._cluster.desk.stop(*self._id, self._attempt.spec.grace_s)
        if failed and not self._failed:
            self._failed = True
            self._lost_first = failed[0].stage is Stage.LOST

    def _who(self, sight: Sight) -> tuple[Reason, str]:
        """Why workers were stopped that were not ordered to."""
        return self._blame or taken_away(sight, self._name)

    async def _act(self, sight: Sight, seen: Seen) -> None:
        """While it isn't being removed: whether it has to be."""
        if sight.job is None and await self._is_gone():
            reason, message = self._who(sight)
            await self._write(removed_because=(reason.value, message))
        elif all(worker.stage.over for worker in seen.workers):
            return
        elif verdict.next_step(seen.workers, self.stopped) is Step.STOP:
            if self._may_be_explained(seen):
                return
            await self._fetch_tails(sight, seen)
            because = (Reason.CANCELLED, "stopped") if self.stopped else self._who(sight)
            await self._remove(*because)
        elif seen.obstacle.hopeless and not self._losses.missing:
            await self._remove(seen.obstacle.reason, seen.obstacle.message)
        elif self._is_overdue(seen):
            await self._take_back(seen)

    def _may_be_explained(self, seen: Seen) -> bool:
        """Workers say that they were stopped, and it wasn't us: who took their pods away, the watch tells in a
        moment."""
        failed = [worker for worker in seen.workers if worker.failed]
        known = self.stopped or self._blame is not None or self._record.removed_because is not None
        if known or not failed or any((worker.report or {}).get("reason") != Reason.CANCELLED for worker in failed):
            return False
        now = asyncio.get_running_loop().time()
        self._unexplained_since = self._unexplained_since or now
        return now - self._unexplained_since < EXPLAINED_S

    async def _is_gone(self) -> bool:
        """Whether its PyTorchJob is not there: the watch may not have brought it yet."""
        uid = self._record.uid
        if uid is None or not self._cluster.inventory.jobs_known:
            return False
        try:
            return await asked(self._cluster.acts.find_job, self._name, uid) is None
        except ApiError:
            return False

    def _is_over(self, sight: Sight, seen: Seen) -> bool:
        """Nothing of it works any more, and whatever it had to say is here, or won't come."""
        if not ending.is_over(sight, seen, removed=self._record.removed_because is not None):
            return False
        if self._may_be_explained(seen):
            return False
        if ending.is_drained(sight):
            return True
        now = asyncio.get_running_loop().time()
        if self._over_since is None and all(pod.over for pod in sight.pods):
            self._over_since = now
        return self._over_since is not None and now - self._over_since > DRAIN_S

    async def _end(self, sight: Sight, seen: Seen) -> Observation:
        removed = self._record.removed_because
        because = (Reason(removed[0]), removed[1]) if removed else self._who(sight)
        reason, message = ending.why(seen, because, stopped=self.stopped, lost_first=self._lost_first)
        ranks = tuple(rank for worker in seen.workers for rank in worker.ranks())
        when = verdict.ended_at(seen.workers) or datetime.now(timezone.utc)
        reports = [worker.report for worker in seen.workers]
        conflicts = await asyncio.to_thread(outputs.conflicts, self._attempt.job_dir, reports)
        remarks = (*self._remarks(seen, at_the_end=True), *outputs.remarks(reports), *conflicts)
        return self._observation("ended", reason, message, seen.infos, ranks, when, remarks)

    def _next_look_s(self) -> float:
        now = asyncio.get_running_loop().time()
        if self._over_since is not None or self._unexplained_since is not None:
            return 1.0
        due = [now + LOOK_AGAIN_S]
        if self._incomplete_since is not None:
            due.append(self._incomplete_since + self._cluster.settings.gang_timeout_s)
        given_up_at = self._leaving.next_due(self._cluster.inventory.pods(self._key))
        if given_up_at is not None:
            due.append(given_up_at)
        return max(min(due) - now, 0.1)

    # --- removed

    async def _remove(self, reason: Reason, message: str) -> None:
        """Begin to delete its PyTorchJob; the pods get a SIGTERM and their grace period."""
        await self._write(removed_because=(reason.value, message))
        if self._losses.bounds is not None:  # else the desk might let another pod in, in the place of one that goes
            self._cluster.desk.stop(*self._id, self._attempt.spec.grace_s)
        await self._delete()

    async def _delete(self, *, nothing_runs: bool = False) -> None:
        uid = self._record.uid
        if uid is not None:
            await insist(lambda: self._cluster.acts.delete_job(self._name, uid, nothing_runs=nothing_runs))

    async def _clear_away(self) -> None:
        """After its end: nothing of it stays on the cluster. Pods that have succeeded are given time to end."""
        loop = asyncio.get_running_loop()
        until, nothing_runs = loop.time() + LEAVING_S, False
        while self._record.removed_because is None and loop.time() < until:
            self._dirty.clear()
            if nothing_runs := all(pod.over for pod in self._pods()):
                break
            await self._pause(until - loop.time())
        if nothing_runs:
            async with self._cluster.removals.turn():
                await self._delete(nothing_runs=True)
                await self._until_gone(TURN_S)
        else:
            await self._delete()
        await self._until_gone()

    async def _until_gone(self, limit_s: float = math.inf) -> None:
        loop = asyncio.get_running_loop()
        uid, until = self._record.uid, loop.time() + limit_s
        while uid is not None and loop.time() < until:
            self._dirty.clear()
            inventory = self._cluster.inventory
            pods_are_gone = all(pod.gone for pod in inventory.pods(self._key))
            if pods_are_gone and inventory.job(self._key) is None and inventory.jobs_known:
                return
            await self._pause(min(LOOK_AGAIN_S, until - loop.time()))

    def _is_overdue(self, seen: Seen) -> bool:
        """The gang isn't complete for too long."""
        now = asyncio.get_running_loop().time()
        if all(worker.stage is not Stage.STARTING for worker in seen.workers) or not seen.obstacle.counts:
            self._incomplete_since = None
            return False
        self._incomplete_since = self._incomplete_since or now
        return now - self._incomplete_since >= self._cluster.settings.gang_timeout_s

    async def _take_back(self, seen: Seen) -> None:
        """Give back what it holds, so that two gangs that have half of what they need don't wait for each other."""
        minutes = self._cluster.settings.gang_timeout_s / 60
        text = f"not complete within {minutes:.3g} min ({seen.obstacle.message}); it is taken back and queued again"
        self._say("waiting", Reason.UNSCHEDULABLE, text, seen.infos)
        await self._delete()
        await self._until_gone()
        self._cluster.inventory.drop_gone(self._key)
        self._cluster.desk.forget(*self._id)
        self._taken_back, self._taken_back_because = self._taken_back + 1, seen.obstacle.message
        self._incomplete_since = None
        await self._write(uid=None, name=None)

    async def _pause_after_taking_back(self) -> None:
        loop = asyncio.get_running_loop()
        back_off_s = min(FIRST_BACK_OFF_S * 2 ** (self._taken_back - 1), LONGEST_BACK_OFF_S)
        back_off_s = min(back_off_s, self._cluster.settings.gang_timeout_s)
        until = loop.time() + back_off_s
        text = f"taken back as it was not complete, tries again in {back_off_s:.0f} s: {self._taken_back_because}"
        self._say("waiting", Reason.UNSCHEDULABLE, text)
        while not self.stopped and loop.time() < until:
            self._dirty.clear()
            await self._pause(until - loop.time())

    # --- the logs of those that died without a word

    async def _fetch_tails(self, sight: Sight, seen: Seen) -> None:
        if self._cluster.settings.server_url is None:
            await self._cluster.logs.read_out(self._key, sight.pods)
            return
        for pod in ending.died_silently(sight, seen):
            if pod.uid not in self._read_tails:
                self._read_tails.add(pod.uid)
                await self._cluster.logs.read_tail(self._key, pod)

    # --- what it tells

    def _say_how_it_stands(self, seen: Seen) -> None:
        stages = {worker.stage for worker in seen.workers}
        if self._record.removed_because is not None:
            return
        if stages <= {Stage.STARTED, Stage.ENDED} and Stage.STARTED in stages:
            self._say("running", Reason.RUNNING, self._losses.message(), seen.infos, self._remarks(seen))
        elif Stage.STARTED not in stages:
            self._say("waiting", seen.obstacle.reason, seen.obstacle.message, seen.infos, seen.unknown)

    def _remarks(self, seen: Seen, *, at_the_end: bool = False) -> tuple[str, ...]:
        cluster = self._cluster
        views = cluster.desk.view(*self._id)
        lost = ending.lost_lines(seen, views) if at_the_end else {view.worker: view.missing for view in views}
        return (*seen.unknown, *remarks(self._attempt, lost, cluster.settings, cluster.catalogue))

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
