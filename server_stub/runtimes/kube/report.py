"""Reports the progress and the end of one attempt to the service, as observations."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from typing import Literal

from client_lib.spec.states import Reason
from client_lib.spec.wire import WorkerInfo
from server_stub.files import outputs
from server_stub.runtimes import RAN_IMAGE, Attempt, Observation, verdict
from server_stub.runtimes.kube.cluster import Cluster
from server_stub.runtimes.kube.observe import Interpretation, ending, messages
from server_stub.runtimes.verdict import Stage, Verdict
from server_stub.worker_gateway import NOTICED_S, WorkerView


class Reporter:
    """The observations of one attempt; `sink` gets each that differs from the one before."""

    def __init__(self, attempt: Attempt, cluster: Cluster, sink: Callable[[Observation], None]) -> None:
        self._attempt, self._cluster, self._sink = attempt, cluster, sink
        self._last: Observation | None = None

    def waiting(
        self, reason: Reason, message: str, infos: tuple[WorkerInfo, ...] = (), notes: tuple[str, ...] = ()
    ) -> None:
        """Report that the attempt waits, and why."""
        self.report(self._observation("waiting", reason, message, infos, notes))

    def progress(self, seen: Interpretation, missing: str) -> None:
        """Report how far the workers are. `missing`: message about workers that the attempt goes on without."""
        views, n_workers = self._views(), self._attempt.spec.n_workers
        silent = messages.silent(ending.silent(seen, views, NOTICED_S), n_workers, NOTICED_S)
        stages = {worker.stage for worker in seen.workers}
        waits_for_logs = stages == {Stage.ENDED} and not any(worker.failed for worker in seen.workers)
        if waits_for_logs or (stages <= {Stage.STARTED, Stage.ENDED} and Stage.STARTED in stages):
            lost = {view.worker: view.missing for view in views}
            rest = "every rank has ended, the rest of the logs is on its way" if waits_for_logs else ""
            message = _joined(missing, silent, rest, messages.lost_in_all(lost, n_workers))
            found = self._observation("running", Reason.RUNNING, message, seen.infos, self._notes(seen, lost))
            self.report(replace(found, quiet=verdict.quiet(seen.workers)))
        elif silent or Stage.STARTED not in stages:
            self.waiting(seen.blocker.reason, _joined(seen.blocker.message, silent), seen.infos, seen.unknown)

    def unstarted(self, reason: Reason, message: str) -> Observation:
        """The end of an attempt without objects, for `report`."""
        return replace(self._observation("ended", reason, message), ended_at=datetime.now(timezone.utc))

    async def ended(self, seen: Interpretation, why: Verdict) -> Observation:
        """The end of an attempt, for `report`."""
        reports = [worker.report for worker in seen.workers]
        conflicts = await asyncio.to_thread(outputs.conflict_notes, self._attempt.job_dir, reports)
        lost = ending.lost_lines(seen, self._views())
        notes = (*self._notes(seen, lost), *outputs.notes(reports), *conflicts)
        message = _joined(why.message, messages.lost_in_all(lost, self._attempt.spec.n_workers))
        return replace(
            self._observation("ended", why.reason, message, seen.infos, notes),
            ranks=tuple(rank for worker in seen.workers for rank in worker.ranks()),
            ended_at=verdict.ended_at(seen.workers) or datetime.now(timezone.utc),
            first_failing=why.first_failing,
            stacks=verdict.last_stacks(seen.workers),
        )

    def report(self, seen: Observation) -> None:
        if seen != self._last:
            self._last = seen
            self._sink(seen)

    def _views(self) -> tuple[WorkerView, ...]:
        found = self._cluster.registry.find(self._attempt.job_id, self._attempt.number)
        return found.views() if found else ()

    def _notes(self, seen: Interpretation, lost_lines: Mapping[int, int]) -> tuple[str, ...]:
        images = (f"{RAN_IMAGE}{image}" for image in seen.images)
        return (*seen.unknown, *images, *ending.notes(self._attempt, lost_lines, self._cluster.options))

    def _observation(
        self,
        phase: Literal["waiting", "running", "ended"],
        reason: Reason,
        message: str,
        infos: tuple[WorkerInfo, ...] = (),
        notes: tuple[str, ...] = (),
    ) -> Observation:
        attempt = self._attempt
        if infos and phase != "waiting":
            threads = self._cluster.threads(attempt.spec)
            infos = tuple(info.model_copy(update={"threads": threads}) for info in infos)
        return Observation(attempt.job_id, attempt.number, phase, reason, message, infos, notes=notes)


def _joined(*parts: str) -> str:
    return "; ".join(filter(None, parts))
