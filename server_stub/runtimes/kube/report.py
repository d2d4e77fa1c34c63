"""Reports the progress and the end of one attempt to the service, as observations."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from typing import Literal

from client_lib.spec.states import Reason
from client_lib.spec.wire import WorkerInfo
from server_stub.runtimes import Attempt, Observation, outputs, verdict
from server_stub.runtimes.kube.cluster import Cluster
from server_stub.runtimes.kube.observe import Interpretation, ending
from server_stub.runtimes.verdict import Stage, Verdict


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
        stages = {worker.stage for worker in seen.workers}
        if stages <= {Stage.STARTED, Stage.ENDED} and Stage.STARTED in stages:
            views = self._cluster.registry.view(self._attempt.job_id, self._attempt.number)
            notes = self._notes(seen, {view.worker: view.missing for view in views})
            self.report(self._observation("running", Reason.RUNNING, missing, seen.infos, notes))
        elif Stage.STARTED not in stages:
            self.waiting(seen.blocker.reason, seen.blocker.message, seen.infos, seen.unknown)

    def unstarted(self, reason: Reason, message: str) -> Observation:
        """The end of an attempt without objects, for `report`."""
        return replace(self._observation("ended", reason, message), ended_at=datetime.now(timezone.utc))

    async def ended(self, seen: Interpretation, why: Verdict) -> Observation:
        """The end of an attempt, for `report`."""
        reports = [worker.report for worker in seen.workers]
        conflicts = await asyncio.to_thread(outputs.conflicts, self._attempt.job_dir, reports)
        views = self._cluster.registry.view(self._attempt.job_id, self._attempt.number)
        notes = (*self._notes(seen, ending.lost_lines(seen, views)), *outputs.notes(reports), *conflicts)
        return replace(
            self._observation("ended", why.reason, why.message, seen.infos, notes),
            ranks=tuple(rank for worker in seen.workers for rank in worker.ranks()),
            ended_at=verdict.ended_at(seen.workers) or datetime.now(timezone.utc),
            first_failing=why.first_failing,
        )

    def report(self, seen: Observation) -> None:
        if seen != self._last:
            self._last = seen
            self._sink(seen)

    def _notes(self, seen: Interpretation, lost_lines: Mapping[int, int]) -> tuple[str, ...]:
        cluster = self._cluster
        return (*seen.unknown, *ending.notes(self._attempt, lost_lines, cluster.settings, cluster.catalogue))

    def _observation(
        self,
        phase: Literal["waiting", "running", "ended"],
        reason: Reason,
        message: str,
        infos: tuple[WorkerInfo, ...] = (),
        notes: tuple[str, ...] = (),
    ) -> Observation:
        attempt = self._attempt
        return Observation(attempt.job_id, attempt.number, phase, reason, message, infos, notes=notes)
