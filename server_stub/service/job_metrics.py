"""The metrics, the progress and the use of time of jobs, by what their processes print."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar

from client_lib.spec.checkpoints import JobCheckpoint, JobCheckpoints
from client_lib.spec.metrics import Curve, JobGoodput, JobMetrics
from client_lib.spec.replace import replaced
from client_lib.spec.states import Reason, State
from client_lib.spec.wire import JobInfo, JobProgress
from server_stub.curves import goodput
from server_stub.curves.reader import CurveReader, Whose
from server_stub.logs.records import LoggedJob
from server_stub.runtimes.tasks import Clock
from server_stub.service.lookup import JobLookup, check_observable
from server_stub.store import Store, rows
from server_stub.turns import Turns, finished
from server_stub.users import User

log = logging.getLogger(__name__)
T = TypeVar("T")

_READERS = 2
"""Largest number of logs that are read for users at once, each for up to _LONGEST_S."""
_WAITING = 32
"""Largest number of requests of a user that wait: a page asks for the metrics of several jobs."""
_LONGEST_S = 10.0
"""Longest time of reading a log for its metrics; the next request reads on."""
_SHARED_S = 5.0
"""Longest time for which an answer with metrics is kept for others that ask for the same."""
_PATIENCE_S = 0.15
"""Longest delay of a list by logs that were not read yet; the next list reads on."""


class _Asked(NamedTuple):
    """The request that an answer with metrics is for."""

    job_id: str
    version: int
    """Version of the job."""
    rank: Whose
    points: int
    """Largest number of points of a curve."""


@dataclass
class _SharedAnswer:
    began: float
    """Monotonic time of the first request."""
    user: str
    """The user at whose turn it is made."""
    text: asyncio.Task[bytes]
    readers: int = 0

    def serves(self, user: User) -> bool:
        """True if the answer is there, or is made at the user's own turn; False if it failed."""
        if not self.text.done():
            return user.name == self.user
        return not self.text.cancelled() and self.text.exception() is None

    async def wait(self) -> bytes:
        """Return the text. If its last reader leaves before the end, stop making it."""
        self.readers += 1
        try:
            return await asyncio.shield(self.text)
        finally:
            self.readers -= 1
            if not self.readers and not self.text.done():
                self.text.cancel()
                self.began = -math.inf  # later readers must not share the cancelled task


class MetricsReader:
    """Reads the metrics of the jobs of one service. Event loop only. The methods for users take
    `owner` as the methods of `Service` do.
    """

    def __init__(self, clock: Clock, store: Store, lookup: JobLookup) -> None:
        self._clock = clock
        self._store = store
        self._lookup = lookup
        self._curves = CurveReader()
        # one more than the readers of users, for the server's own questions
        self._threads = ThreadPoolExecutor(_READERS + 1, thread_name_prefix="curves")
        self._turns = Turns(
            "reads of metrics", at_once=_READERS, of_user=1, waiting_of_user=_WAITING
        )
        self._answers: dict[_Asked, _SharedAnswer] = {}

    def close(self) -> None:
        """Read no more logs: each read that waits for a thread would delay the end
        of the server by 10 s.
        """
        self._threads.shutdown(wait=False, cancel_futures=True)

    # --- for users

    async def of(
        self,
        user: User,
        name: str,
        rank: Whose,
        points: int,
        owner: str | None,
        max_age_s: float = 0.0,
    ) -> bytes:
        """The curves of one rank, of all, or of what the workers used, with at most `points` points
        each, as the JSON of JobMetrics. `max_age_s`: an answer that another request got so long
        ago, at most 5 s, is good enough. Raises NotFound; Forbidden: the user is neither its owner
        nor admin; Conflict: the job forbids it."""
        job = (await self._lookup.find(user, name, owner)).public
        check_observable(user, job, "metrics")
        now = time.monotonic()
        asked = _Asked(job.id, job.version, rank, points)
        self._answers = {
            other: answer
            for other, answer in self._answers.items()
            if now - answer.began < _SHARED_S
        }
        answer = self._answers.get(asked)
        if answer is None or now - answer.began >= max_age_s or not answer.serves(user):
            reading = self._read_for(user, partial(self._metrics, job, rank, points), job)
            answer = _SharedAnswer(now, user.name, asyncio.create_task(reading))
            self._answers[asked] = answer
        return await answer.wait()

    def _metrics(
        self, job: JobInfo, rank: Whose, points: int, logs: LoggedJob, until: float
    ) -> bytes:
        found = self._curves.curves(logs, rank, until)
        curves = []
        for (of, name), whole in sorted(
            found.curves.items(), key=lambda pair: (pair[0][1], pair[0][0] or 0)
        ):
            shown = whole.thinned_to(points)
            steps, times, values = map(list, shown.columns)
            facts = {"axis": shown.axis, "points": len(whole), "thinned": whole.thinned}
            curves.append(
                Curve(name=name, rank=of, steps=steps, times=times, values=values, **facts)
            )
        progress = self._progress([job]).get(job.id) if job.state == State.RUNNING else None
        facts = {"attempt": job.attempt, "complete": found.complete, "dropped": found.dropped}
        return (
            JobMetrics(job=job.name, progress=progress, curves=curves, **facts)
            .model_dump_json()
            .encode()
        )

    async def goodput(self, user: User, name: str, owner: str | None) -> JobGoodput:
        """The use of the job's time. Raises what `of` raises."""
        found = await self._lookup.find(user, name, owner)
        job = found.public
        check_observable(user, job, "use of time")
        events = await self._store.read(rows.list_events, found.row.seq)
        end = job.finished_at or self._clock.now()

        def split(logs: LoggedJob, until: float) -> dict[str, float]:
            marks = {
                attempt: self._curves.marks(logs, attempt, until)
                for attempt in range(1, job.attempt + 1)
            }
            return goodput.split(events, end, marks)

        spent = {
            f"{name}_s": seconds
            for name, seconds in (await self._read_for(user, split, job)).items()
        }
        return JobGoodput(job=job.name, attempt=job.attempt, wall_s=sum(spent.values()), **spent)

    async def checkpoints(self, user: User, name: str, owner: str | None) -> JobCheckpoints:
        """The checkpoints of the job. Raises what `of` raises."""
        job = (await self._lookup.find(user, name, owner)).public
        check_observable(user, job, "checkpoints")
        found, complete = await self._read_for(user, self._curves.checkpoints, job)
        return JobCheckpoints(job=job.name, checkpoints=found, complete=complete)

    async def seen_checkpoints(self, user: User, job: JobInfo) -> list[JobCheckpoint]:
        """The checkpoints of a job, by the part of its logs that can be read at once; none where
        `checkpoints` refuses.
        """
        if not _is_observable(user, job):
            return []
        until = time.monotonic() + _PATIENCE_S
        logs = self._lookup.logs(job)
        return (await asyncio.to_thread(self._curves.checkpoints, logs, until))[0]

    async def details(self, user: User, job: JobInfo) -> JobProgress | None:
        """The progress of a running job, with its slow rank. For an ended job: only NaN values and
        the slow rank.
        """
        if not (_is_observable(user, job) and (job.state == State.RUNNING or job.state.final)):
            return None
        found = (await asyncio.to_thread(self._progress, [job], True)).get(job.id)
        if found and job.state.final:
            return JobProgress(nan=found.nan, slow=found.slow) if found.nan or found.slow else None
        return found

    async def progress(self, user: User, jobs: Iterable[JobInfo]) -> dict[str, JobProgress]:
        """The progress of the jobs that run, and that this user may observe, by
        their ids.
        """
        chosen = [job for job in jobs if job.state == State.RUNNING and _is_observable(user, job)]
        return await asyncio.to_thread(self._progress, chosen) if chosen else {}

    def _progress(self, jobs: Sequence[JobInfo], with_slow: bool = False) -> dict[str, JobProgress]:
        until = time.monotonic() + _PATIENCE_S
        now = self._clock.now().timestamp()
        found = {}
        for job in jobs:
            logs = self._lookup.logs(job)
            try:
                progress = self._curves.progress(logs, now, until)
                if progress and job.reason == Reason.HUNG:
                    progress = _without_estimate(progress)
                if with_slow:
                    warnings, straggler = self._curves.slow(logs, until)
                    if slow := "; ".join([*warnings, *([str(straggler)] if straggler else [])]):
                        progress = replaced(progress or JobProgress(), slow=slow)
                if progress:
                    found[job.id] = progress
            except Exception:  # a job may write anything to its log; others must be listed
                log.exception("the progress of job %s can't be read", job.id)
        return found

    # --- for the server

    async def first_steps(self, job: JobInfo) -> str:
        """Tell how a job shows that it has made its first steps; "": it does
        not yet, or is not observed.
        """
        return await self._read_log(self._curves.first_steps, job) if job.spec.observe else ""

    async def step(self, job: JobInfo) -> float | None:
        """The step that an attempt reached which has ended; None: its log shows none, or can't be
        read. It is for the decision about a retry, and so also where nothing is shown to users."""
        try:
            return await self._read_log(self._curves.step, job)
        except Exception:  # a job may write anything to its log; it must end
            log.exception("the step of job %s can't be read", job.id)
            return None

    async def _read_for(self, user: User, read: Callable[[LoggedJob, float], T], job: JobInfo) -> T:
        async with self._turns.of(user.name):
            return await self._read_log(read, job)

    async def _read_log(self, read: Callable[[LoggedJob, float], T], job: JobInfo) -> T:
        """Call a function that reads the logs of a job in one of the threads for this,
        for at most `_LONGEST_S`.
        """
        logs = self._lookup.logs(job)
        until = time.monotonic() + _LONGEST_S
        return await finished(self._threads.submit(read, logs, until))


def _is_observable(user: User, job: JobInfo) -> bool:
    """True if this user may see what the job prints."""
    return job.spec.observe and (user.admin or job.owner == user.name)


def _without_estimate(progress: JobProgress) -> JobProgress:
    """The progress of a job that hangs, which has no end to estimate."""
    return replaced(progress, left_s=None, left_from_s=None, left_to_s=None, rate=None)
