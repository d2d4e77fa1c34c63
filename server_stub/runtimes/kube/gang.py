"""One attempt on a cluster: creates its objects, follows it to its end, tells the service about it,
and removes it.

Level-triggered: after each change the whole state is evaluated again, so a restart of the server is
no special case. `observe` and `runtimes.verdict` interpret the state, `objects` changes the
cluster.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from typing import Literal

from client_lib.launcher_protocol.plan import threads_with
from client_lib.spec.replace import replaced
from client_lib.spec.states import Reason
from client_lib.spec.wire import WorkerInfo
from server_stub.files import outputs
from server_stub.files.job_dirs import attempt_dir
from server_stub.runtimes import RAN_IMAGE, Attempt, Observation, verdict
from server_stub.runtimes.kube import names
from server_stub.runtimes.kube.api import (
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    ApiError,
    call_in_thread,
    serves,
)
from server_stub.runtimes.kube.cluster import Cluster
from server_stub.runtimes.kube.objects import LOOK_AGAIN_S, AttemptObjects, Record
from server_stub.runtimes.kube.observe import (
    ClusterState,
    Interpretation,
    ending,
    messages,
    observe,
    taken_away,
)
from server_stub.runtimes.kube.observe.inventory import WorkerPod
from server_stub.runtimes.kube.observe.messages import Blocker
from server_stub.runtimes.tasks import is_set_within
from server_stub.runtimes.verdict import Stage, Step, Verdict
from server_stub.worker_gateway.attempt import SILENT_S, OpenAttempt
from server_stub.worker_gateway.worker import NOTICED_S

DELETE_S = 15.0  # the API server is away, or refuses what this server did before
EXPLAINED_S = 5.0  # a watch brings the reason of a deletion sooner
QUEUE_LOOK_S = 10.0
"""LOOK_AGAIN_S for an attempt in a queue of Kueue, whose changes no watch reports."""
FIRST_BACK_OFF_S = 30.0
"""Pause after a gang was taken back for the first time; each later pause is twice as long."""
LONGEST_BACK_OFF_S = 900.0


class Gang:
    """The workers of one attempt. `report` gets each observation of the attempt that differs from
    the previous one; the last observation is the end."""

    _objects: AttemptObjects
    _workers: OpenAttempt
    """The workers as this server knows them. Both are set by `run`."""

    def __init__(
        self,
        attempt: Attempt,
        in_namespace: Callable[[str | None], Cluster],
        report: Callable[[Observation], None],
    ) -> None:
        """`in_namespace` returns the cluster with a namespace; None: with the server's
        namespace."""
        self._attempt = attempt
        self._in_namespace = in_namespace
        self._report = report
        self._cluster = in_namespace(attempt.namespace)
        self._key = names.AttemptKey(attempt.job_id, attempt.number)
        self._folder = attempt_dir(attempt.job_dir, attempt.number)
        self._needs = self._cluster.needs(attempt.spec)
        self._record = Record()
        self._told: Observation | None = None
        """The last observation that was reported."""
        self._stuck_pods = ending.StuckPods()
        self._changed = asyncio.Event()
        self.stopped = False
        """The service has ordered the stop before any worker failed."""
        self.lacks = ""
        """Message about the right, namespace or operator that the attempt waits for; '': none."""
        self._first_failed: Stage | None = None
        """Stage of the first worker that failed: ENDED or LOST."""
        self._taken_away: tuple[Reason, str] | None = None
        """First reason seen why pods were taken away, before the operator and
        this server remove the rest.
        """
        self._since: dict[Literal["unexplained", "incomplete"], float] = {}
        """Times since which the attempt is so, see `_lasts_s`."""
        self._log_drain = ending.LogDrain()
        self._hung: Verdict | None = None
        """The verdict on an attempt that waited too long for a silent agent."""
        self._read_tails: set[str] = set()
        self._losses = ending.Losses(attempt.spec)
        self._taken_back = 0
        self._taken_back_because = ""
        """Number of times that `_take_back` has removed its objects, and
        the reason of the last one.
        """

    # --- life cycle

    async def run(self) -> None:
        """Continue from the current state to the end, and until no
        object is left on the cluster.
        """
        if not self._attempt.never_started:
            self._record = await asyncio.to_thread(Record.read, self._folder, self._key)
        if self._record.namespace is not None:
            self._cluster = self._in_namespace(self._record.namespace)
        self._cluster = cluster = self._cluster.of_kind(self._record.kind)
        self._objects = AttemptObjects(self._attempt, cluster, self._record, self._changed)
        cluster.inventory.follow(self._key, self._changed.set)
        try:
            self._workers = cluster.register(self._attempt, self._changed.set)
            # a killed server was taking it back
            if self._record.uid is None and self._record.name is not None:
                await self._objects.uid_of_own()
                await self._release_pods()
            while self._record.end is None:
                end = await self._create() or await self._follow()
                if end is not None:
                    await self._write(replace(self._record, end=end))
                else:
                    await self._pause_after_taking_back()
            self._workers.release()
            self._tell(self._record.end)
            cluster.ended.add(self._key)
            await self._objects.remove_after_end(
                self._pods if self._record.removed_because is None else None
            )
            cluster.registry.close(*self._key)
        finally:
            cluster.ended.discard(self._key)
            cluster.inventory.forget(self._key)
            cluster.logs.forget(self._key)

    def stop(self, grace_s: float, *, interrupt: bool = False) -> None:
        """End every process of the attempt; its end is reported when no process is left."""
        self.stopped = self.stopped or self._first_failed is None
        if workers := self._cluster.registry.find(*self._key):
            workers.stop(grace_s, interrupt=interrupt)
        self._changed.set()

    async def _write(self, record: Record) -> None:
        self._record = record
        await asyncio.to_thread(record.write, self._folder)

    async def _pause(self, limit_s: float) -> None:
        """Wait until something changes, at most `limit_s`."""
        await is_set_within(self._changed, limit_s)

    # --- creation

    async def _create(self) -> Observation | None:
        """Create the objects. None: they exist, or existed and are gone.
        Otherwise the end without them.
        """
        if self._record.removed_because is not None:
            return None
        if self._record.kind is None:
            kind = self._cluster.kind.name
            namespace = self._cluster.options.namespace
            await self._write(replace(self._record, kind=kind, namespace=namespace))
        objects = self._objects
        pause_s = FIRST_PAUSE_S
        while not self.stopped:
            blocked = await objects.try_to_create()
            if objects.uid != self._record.uid:
                await self._write(replace(self._record, uid=objects.uid, name=objects.name))
            if blocked is None:
                self.lacks = ""
                return None
            self.lacks = blocked.message if blocked.of_server else ""
            if blocked.of_server and await self._takes_other_kind():
                objects = self._objects
                continue
            if blocked.permanent:
                break
            self._changed.clear()
            self._wait(blocked)
            # during the try, or while the UID was written: that change is cleared
            if not self.stopped:
                await self._pause(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        else:
            blocked = Blocker(Reason.CANCELLED, "stopped while it waited")
        if await objects.uid_of_own() is None:
            end = self._observation("ended", blocked.reason, blocked.message)
            return replace(end, ended_at=datetime.now(timezone.utc))
        await self._remove(blocked.reason, blocked.message)
        return None

    async def _takes_other_kind(self) -> bool:
        """Take the kind of workload that this server has found since the attempt began, if the
        cluster does not serve the attempt's kind: the cluster may not have answered when this
        server started."""
        old = self._cluster.kind
        cluster = self._in_namespace(self._cluster.options.namespace)
        is_there = True
        with contextlib.suppress(ApiError):
            is_there = cluster.kind is old or await call_in_thread(
                serves, cluster.api, old.api_version, old.plural
            )
        if is_there:
            return False
        self._cluster = cluster
        await self._write(replace(self._record, kind=cluster.kind.name))
        self._objects = AttemptObjects(self._attempt, cluster, self._record, self._changed)
        return True

    # --- observation

    async def _follow(self) -> Observation | None:
        """Follow the attempt to its end. None: it was taken back and is to be created again."""
        while True:
            self._changed.clear()
            whole = await self._state()
            all_workers = observe(whole)
            stopping = self.stopped or self._record.removed_because is not None
            state, seen = self._losses.without_lost(
                whole, all_workers, began=self._workers.begun, stopping=stopping
            )
            self._remember(state, seen)
            if self._record.removed_because is None:
                await self._act(state, seen)
            else:
                await self._delete_again()
            await self._fetch_tails(whole, all_workers)
            removed = self._record.removed_because is not None
            counted = whole if removed else state
            over = ending.is_over(counted, seen, removed=removed) and not self._may_be_explained(
                seen
            )
            if over and self._log_drain.is_over(counted, _now()):
                return await self._end(state, seen)
            if self._record.uid is None:
                return None
            if not removed:
                self._tell_progress(seen)
            await self._pause(self._next_look_s())

    async def _state(self) -> ClusterState:
        inventory = self._cluster.inventory
        options = self._cluster.options
        gpus = self._needs is not None and self._needs.gpus > 0
        place = await self._cluster.queues.place(self._objects.workload, gpus=gpus)
        workers_report = options.settings.worker_server_url is not None
        pods = self._pods()
        if not workers_report:
            self._cluster.logs.follow(self._key, pods)
        return ClusterState(
            n_workers=self._attempt.spec.n_workers,
            workload=self._objects.workload,
            queue_place=place,
            gang_scheduler=options.catalogue.gang.scheduler,
            pods=pods,
            events=inventory.events(self._key, self._objects.uid),
            views=self._workers.views() if workers_report else (),
        )

    def _pods(self) -> tuple[WorkerPod, ...]:
        return self._stuck_pods.mark(self._cluster.inventory.pods(self._key), _now())

    def _remember(self, state: ClusterState, seen: Interpretation) -> None:
        """Keep what a later state may not show any more: why pods went away, and
        which worker failed first.
        """
        job_deleted = state.workload is not None and state.workload.deleting
        touched = job_deleted or any(pod.gone or pod.deleting for pod in state.pods)
        failed = [worker for worker in seen.workers if worker.failed]
        # the attempt goes on without pods taken away earlier
        if self._losses.bounds is not None and not failed:
            self._taken_away = None
        # may be seen after its pods end
        preempted = state.workload is not None and state.workload.suspended
        if touched and self._record.removed_because is None:
            if preempted:
                self._taken_away = None
            self._taken_away = self._why_taken_away(state)
        # no other pod replaces it
        if self._losses.bounds is None and ending.takes_a_worker(state.pods, state.views):
            # the kubelet stops that pod itself, unless it is dead
            self._workers.stop(self._attempt.spec.grace_s)
        if failed and self._first_failed is None:
            self._first_failed = failed[0].stage

    def _why_taken_away(self, state: ClusterState) -> tuple[Reason, str]:
        return self._taken_away or taken_away(
            state, f"{self._cluster.kind.name} {self._objects.name}"
        )

    async def _act(self, state: ClusterState, seen: Interpretation) -> None:
        """Remove the attempt or take it back if the state requires it."""
        blocker = seen.blocker
        timeout_s = self._cluster.options.catalogue.gang.timeout_s
        starting = any(worker.stage is Stage.STARTING for worker in seen.workers)
        if state.workload is None and await self._objects.are_gone():
            await self._write(replace(self._record, removed_because=self._why_taken_away(state)))
        elif all(worker.stage.over for worker in seen.workers):
            return
        elif verdict.next_step(seen.workers, self.stopped) is Step.STOP:
            if self._may_be_explained(seen):
                return
            await self._fetch_tails(state, seen)
            await self._remove(
                *((Reason.CANCELLED, "stopped") if self.stopped else self._why_taken_away(state))
            )
        elif blocker.permanent and not self._losses.missing:
            await self._remove(blocker.reason, blocker.message)
        elif hung := ending.hung(seen, state.views):
            why = messages.silent(hung, state.n_workers, SILENT_S)
            if any(worker.stage in (Stage.STARTED, Stage.ENDED) for worker in seen.workers):
                self._hung = Verdict(Reason.NODE_LOST, why)
                await self._remove(self._hung.reason, why)
            else:  # none of its ranks has run
                await self._take_back(seen, "prepared, and not started", why)
        elif self._lasts_s("incomplete", starting and blocker.counts_toward_timeout) >= timeout_s:
            await self._take_back(
                seen, f"not complete within {timeout_s / 60:.3g} min", blocker.message
            )

    def _may_be_explained(self, seen: Interpretation) -> bool:
        """True if workers report a stop that this server did not order: the watch
        brings the reason in a moment.
        """
        failed = [worker for worker in seen.workers if worker.failed]
        cancelled = bool(failed) and all(
            worker.report is not None and worker.report["reason"] == Reason.CANCELLED
            for worker in failed
        )
        known = (
            self.stopped or self._taken_away is not None or self._record.removed_because is not None
        )
        unexplained = cancelled and not known
        return self._lasts_s("unexplained", unexplained) < EXPLAINED_S and unexplained

    def _lasts_s(self, what: Literal["unexplained", "incomplete"], holds: bool) -> float:
        """Seconds for which this has been seen without a break; `holds`: it is so now."""
        if not holds:
            self._since.pop(what, None)
            return 0.0
        return _now() - self._since.setdefault(what, _now())

    def _next_look_s(self) -> float:
        if self._log_drain.is_near or "unexplained" in self._since:
            return 1.0
        workload = self._objects.workload
        due = [
            _now() + (QUEUE_LOOK_S if workload is not None and workload.suspended else LOOK_AGAIN_S)
        ]
        if "incomplete" in self._since:
            due.append(self._since["incomplete"] + self._cluster.options.catalogue.gang.timeout_s)
        if self._stuck_pods.next_due is not None:
            due.append(self._stuck_pods.next_due)
        return max(min(due) - _now(), 0.1)

    # --- removal

    async def _remove(self, reason: Reason, message: str) -> None:
        """Begin to delete the workload; its pods get a SIGTERM and their grace period."""
        uid = self._objects.uid
        name = self._objects.name
        await self._write(
            replace(self._record, uid=uid, name=name, removed_because=(reason, message))
        )
        await self._delete()

    async def _delete(self) -> None:
        """Order the deletion. If that takes DELETE_S, the attempt is followed
        first: it may end nevertheless.
        """
        # prevents that the registry admits a new pod for one that is being deleted
        if self._losses.bounds is not None:
            self._workers.stop(self._attempt.spec.grace_s)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._objects.delete(), DELETE_S)

    async def _delete_again(self) -> None:
        """Order the deletion that the cluster has not taken: it was refused, or this
        server was killed before.
        """
        workload = self._objects.workload
        if workload is not None and not workload.deleting:
            await self._delete()

    async def _take_back(self, seen: Interpretation, what: str, why: str) -> None:
        """Release its pods, so that two gangs with half of their pods each
        do not wait for each other.
        """
        self._wait(
            Blocker(Reason.UNSCHEDULABLE, f"{what} ({why}); it is taken back and queued again"),
            seen.infos,
        )
        self._taken_back = self._taken_back + 1
        self._taken_back_because = f"{what}: {why}"
        # a missing workload with a UID would be an end
        await self._write(replace(self._record, uid=None))
        await self._release_pods()

    async def _release_pods(self) -> None:
        """Remove the objects of an attempt that is taken back, and forget its workers. After a stop
        the attempt ends: the pod of a lost node may be there for ever."""
        await self._delete()
        while not self._objects.are_removed():
            if self.stopped:
                await self._remove(Reason.CANCELLED, "stopped")
                return
            self._changed.clear()
            await self._pause(LOOK_AGAIN_S)
            await self._delete_again()
        self._cluster.inventory.drop_gone(self._key)
        self._workers.forget()
        self._since.clear()
        await self._write(replace(self._record, name=None))
        self._objects = AttemptObjects(self._attempt, self._cluster, self._record, self._changed)

    async def _pause_after_taking_back(self) -> None:
        longest_s = min(LONGEST_BACK_OFF_S, self._cluster.options.catalogue.gang.timeout_s)
        back_off_s = min(FIRST_BACK_OFF_S * 2 ** min(self._taken_back - 1, 9), longest_s)
        until = _now() + back_off_s
        text = f"taken back, tries again in {back_off_s:.0f} s: {self._taken_back_because}"
        self._wait(Blocker(Reason.UNSCHEDULABLE, text))
        while not self.stopped and _now() < until:
            self._changed.clear()
            await self._pause(until - _now())

    async def _fetch_tails(self, state: ClusterState, seen: Interpretation) -> None:
        """Read the logs of workers that died without a report; all logs if
        pods can't reach this server.
        """
        if self._cluster.options.settings.worker_server_url is None:
            await self._cluster.logs.read_out(self._key, state.pods)
            return
        missing = ending.lost_lines(seen, state.views)
        for pod in ending.died_silently(state, seen):
            if pod.uid not in self._read_tails:
                self._read_tails.add(pod.uid)
                await self._cluster.logs.read_tail(self._key, pod, missing.get(pod.worker, 0))

    # --- what the service is told

    def _tell(self, seen: Observation) -> None:
        if seen != self._told:
            self._told = seen
            self._report(seen)

    def _wait(
        self, why: Blocker, infos: tuple[WorkerInfo, ...] = (), notes: tuple[str, ...] = ()
    ) -> None:
        """Report that the attempt waits, and why."""
        self._tell(self._observation("waiting", why.reason, why.message, infos, notes))

    def _tell_progress(self, seen: Interpretation) -> None:
        """Report how far the workers are."""
        views = self._workers.views()
        n_workers = self._attempt.spec.n_workers
        silent = messages.silent(ending.silent(seen, views, NOTICED_S), n_workers, NOTICED_S)
        stages = {worker.stage for worker in seen.workers}
        waits_for_logs = stages == {Stage.ENDED} and not any(
            worker.failed for worker in seen.workers
        )
        if waits_for_logs or (stages <= {Stage.STARTED, Stage.ENDED} and Stage.STARTED in stages):
            lost = {view.worker: view.missing for view in views}
            rest = (
                "every rank has ended, the rest of the logs is on its way" if waits_for_logs else ""
            )
            missing = verdict.who_is_missing(self._losses.missing, n_workers)
            message = _joined(missing, silent, rest, messages.lost_lines(lost, n_workers))
            found = self._observation(
                "running", Reason.RUNNING, message, seen.infos, self._notes(seen, lost)
            )
            self._tell(replace(found, quiet=verdict.quiet(seen.workers)))
        elif silent or Stage.STARTED not in stages:
            message = _joined(seen.blocker.message, silent)
            self._wait(seen.blocker._replace(message=message), seen.infos, seen.unknown)

    async def _end(self, state: ClusterState, seen: Interpretation) -> Observation:
        because = self._record.removed_because or self._why_taken_away(state)
        why = ending.why(
            seen, because, stopped=self.stopped, lost_first=self._first_failed is Stage.LOST
        )
        if self._hung is not None and not self.stopped:
            why = self._hung
        self._cluster.queues.ended(self._attempt.spec.queue_name, state.pods)
        reports = [worker.report for worker in seen.workers]
        conflicts = await asyncio.to_thread(outputs.conflict_notes, self._attempt.job_dir, reports)
        lost = ending.lost_lines(seen, self._workers.views())
        notes = (
            *self._notes(seen, lost),
            *verdict.notes(seen.workers),
            *outputs.notes(reports),
            *conflicts,
        )
        message = _joined(why.message, messages.lost_lines(lost, self._attempt.spec.n_workers))
        return replace(
            self._observation("ended", why.reason, message, seen.infos, notes),
            started_at=verdict.started_at(seen.workers),
            ended_at=verdict.ended_at(seen.workers) or datetime.now(timezone.utc),
            first_failing=why.first_failing,
            stacks=verdict.last_stacks(seen.workers),
        )

    def _notes(self, seen: Interpretation, lost_lines: Mapping[int, int]) -> tuple[str, ...]:
        images = (f"{RAN_IMAGE}{image}" for image in seen.images)
        return (
            *seen.unknown,
            *images,
            *ending.notes(self._attempt, lost_lines, self._cluster.options),
        )

    def _observation(
        self,
        phase: Literal["waiting", "running", "ended"],
        reason: Reason,
        message: str,
        infos: tuple[WorkerInfo, ...] = (),
        notes: tuple[str, ...] = (),
    ) -> Observation:
        if (
            infos
            and phase != "waiting"
            and self._attempt.spec.env_variables.get("OMP_NUM_THREADS") is None
        ):
            threads = (
                threads_with(self._needs.cores, self._needs.processes) if self._needs else None
            )
            infos = tuple(replaced(info, threads=threads) for info in infos)
        return Observation(*self._key, phase, reason, message, infos, notes=notes)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _joined(*parts: str) -> str:
    return "; ".join(filter(None, parts))
