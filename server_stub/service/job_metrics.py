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
from client_lib.spec.wire import Attention, JobInfo, JobProgress
from server_stub.curves import goodput
from server_stub.curves.alarms import Alarms, Finding
from server_stub.curves.alerts import Alert
from server_stub.curves.losses import sentence
from server_stub.curves.reader import CurveReader, Whose
from server_stub.logs.records import LoggedJob
from server_stub.runtimes.tasks import Clock
from server_stub.service.attention import NOTHING, Seen, attention
from server_stub.service.job_json import Live
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
END_S = 2.0
"""Longest delay of the end of a job by a look at its log."""
_SEEN_S = 5.0
"""Time for which lists use what the logs of all workers of a job have shown."""
_FORGOTTEN_S = 60.0
"""Time after which nothing of that is kept."""


class _Asked(NamedTuple):
    """The request that an answer with metrics is for."""

    job_id: str
    version: int
    """Version of the job."""
    rank: Whose
    points: int
    """Largest number of points of a curve."""


class _Seen(NamedTuple):
    """A look at the logs of a running job."""

    at: float
    """Monotonic time."""
    seen: Seen


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
        self._seen: dict[tuple[str, int], _Seen] = {}
        """The newest look at each running job, by its id and attempt."""

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
        until_progress = time.monotonic() + _PATIENCE_S
        progress = None
        if job.state == State.RUNNING:
            progress = self._progress([job], until_progress).get(job.id)
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

    async def checkpoints(self, user: User, job: JobInfo) -> JobCheckpoints:
        """The checkpoints of a job that its launchers have seen. Raises what `of` raises."""
        check_observable(user, job, "checkpoints")
        found, complete = await self._read_for(user, self._curves.checkpoints, job)
        return JobCheckpoints(job=job.name, checkpoints=found, complete=complete)

    async def seen_checkpoints(self, user: User, job: JobInfo) -> list[JobCheckpoint]:
        """The checkpoints that the part of its logs tells which can be read at once; none where
        `checkpoints` refuses."""
        if not _is_observable(user, job):
            return []
        until = time.monotonic() + _PATIENCE_S
        logs = self._lookup.logs(job)
        return (await asyncio.to_thread(self._curves.checkpoints, logs, until))[0]

    async def details(self, user: User, job: JobInfo) -> Live | None:
        """The progress and attention of a running job. Of an ended job also what was not stored
        with its end, as its log was too long to be read then, and its slow rank. None: nothing
        beyond what is stored, also where the user may not see what the job prints.
        """
        if not (_is_observable(user, job) and (job.state == State.RUNNING or job.state.final)):
            return None
        return await asyncio.to_thread(self._details, job)

    def _details(self, job: JobInfo) -> Live:
        until = time.monotonic() + _PATIENCE_S
        progress = None if job.state.final else self._progress([job], until).get(job.id)
        seen = self._look(job, until)
        if job.state.final and job.attention:
            return _live(progress, job.attention, seen)
        return _live(progress, attention(job, seen), seen)

    async def live(
        self, user: User, listed: Iterable[JobInfo], members: Iterable[JobInfo] = ()
    ) -> dict[str, Live]:
        """The progress and attention of the `listed` jobs that run, and that this user may observe,
        by their ids; of `members` of groups the attention alone.
        """
        jobs = [job for job in listed if job.state == State.RUNNING and _is_observable(user, job)]
        others = [
            job for job in members if job.state == State.RUNNING and _is_observable(user, job)
        ]
        return await asyncio.to_thread(self._live, jobs, others) if jobs or others else {}

    def _live(self, jobs: Sequence[JobInfo], others: Sequence[JobInfo]) -> dict[str, Live]:
        until = time.monotonic() + _PATIENCE_S
        progress = self._progress(jobs, until)
        found = {}
        for job in (*jobs, *others):
            seen = self._lately_seen(job, until)
            found[job.id] = _live(progress.get(job.id), attention(job, seen), seen)
        return found

    def _progress(self, jobs: Sequence[JobInfo], until: float) -> dict[str, JobProgress]:
        now = self._clock.now().timestamp()
        found = {}
        for job in jobs:
            try:
                progress = self._curves.progress(self._lookup.logs(job), now, until)
            except Exception:  # a job may write anything to its log; others must be listed
                log.exception("the progress of job %s can't be read", job.id)
                continue
            if progress and job.reason == Reason.HUNG:
                progress = _without_estimate(progress)
            if progress:
                found[job.id] = progress
        return found

    def _lately_seen(self, job: JobInfo, until: float) -> Seen:
        """The result of a look that is at most `_SEEN_S` old, or older if the time is over: the
        next list looks at the others.
        """
        now = time.monotonic()
        known = self._seen.get((job.id, job.attempt))
        if known and (now > until or now - known.at < _SEEN_S):
            return known.seen
        return self._look(job, until) if now <= until else NOTHING

    def _look(self, job: JobInfo, until: float) -> Seen:
        """Read the logs of all workers, until then."""
        logs = self._lookup.logs(job)
        try:
            loss = sentence(self._curves.losses(logs, until))
            warnings, straggler = self._curves.slow(logs, until)
            alerts = self._curves.alerts(logs, until)
        except Exception:  # a job may write anything to its log; others must be listed
            log.exception("the log of job %s can't be read", job.id)
            return NOTHING
        seen = Seen(loss, [*warnings, *([str(straggler)] if straggler else [])], alerts)
        now = time.monotonic()
        if not job.state.final:
            newer = {key: each for key, each in self._seen.items() if now - each.at < _FORGOTTEN_S}
            self._seen = {**newer, (job.id, job.attempt): _Seen(now, seen)}
        return seen

    # --- for the server

    async def first_steps(self, job: JobInfo) -> str:
        """Tell how a job shows that it has made its first steps; "": it does
        not yet, or is not observed.
        """
        return await self._read_log(self._curves.first_steps, job) if job.spec.observe else ""

    async def at_end(self, job: JobInfo) -> Seen:
        """Look at the logs of an attempt that has ended, for at most `END_S`: the end of the job
        waits for it.
        """
        if not job.spec.observe:
            return NOTHING
        return await self._read_in_time(partial(self._look, job), NOTHING)

    async def alarms(self, job: JobInfo, alarms: Alarms) -> list[Finding]:
        """The rules of `alarms` that have become true since the last call."""
        return await self._read_log(partial(self._alarms, alarms), job)

    async def alerts(self, job: JobInfo) -> list[Alert]:
        """The alerts of the scripts so far."""
        return await self._read_log(self._curves.alerts, job)

    async def alarms_at_end(self, job: JobInfo, alarms: Alarms) -> list[Finding]:
        """The rules that have become true since the last call, in the whole logs of an attempt that
        has ended. The call takes at most `END_S`; after it `alarms` can't be used any more."""
        return await self._read_in_time(partial(self._alarms, alarms, self._lookup.logs(job)), [])

    def _alarms(self, alarms: Alarms, logs: LoggedJob, until: float) -> list[Finding]:
        return self._curves.alarms(logs, alarms, until)

    async def _read_in_time(self, read: Callable[[float], T], otherwise: T) -> T:
        """Call a function that reads until a monotonic time, for at most `END_S`."""
        until = time.monotonic() + END_S
        reading = asyncio.wrap_future(self._threads.submit(read, until))
        try:
            done, _ = await asyncio.wait({reading}, timeout=END_S)
            return reading.result() if done else otherwise
        finally:
            reading.cancel()  # one that waits for its disk ends later, and nobody needs its result

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


def _live(progress: JobProgress | None, told: list[Attention], seen: Seen) -> Live:
    """The attention, with its sentences where clients of an older version look for them."""
    loss = next((each.sentence for each in told if each.code == "loss"), None)
    slow = "; ".join(seen.slow) or None
    if loss or slow:
        progress = replaced(progress or JobProgress(), nan=loss, slow=slow)
    return Live(progress, told)


def _without_estimate(progress: JobProgress) -> JobProgress:
    """The progress of a job that hangs, which has no end to estimate."""
    return replaced(progress, left_s=None, left_from_s=None, left_to_s=None, rate=None)
