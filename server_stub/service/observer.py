"""Shows what jobs do, by the stacks of running processes, and the metrics and the progress that
they print; and what a job ran: the submitter's part in its request, the workers' in their logs,
images in its events."""

import asyncio
import json
import logging
import math
import re
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from typing import TypeVar

from client_lib.errors import Conflict
from client_lib.launcher_protocol.record import METRICS, pattern
from client_lib.launcher_protocol.report import storable
from client_lib.spec.metrics import Curve, JobGoodput, JobMetrics
from client_lib.spec.request import SubmitRequest
from client_lib.spec.stacks import JobStacks, RankStacks, groups, read_worker
from client_lib.spec.states import Reason, State
from client_lib.spec.wire import Event, JobInfo, JobProgress, JobProvenance, WorkerMachine
from server_stub.curves import goodput
from server_stub.curves.reader import CurveReader, Whose
from server_stub.files.job_dirs import log_dir
from server_stub.logs.records import LoggedJob
from server_stub.logs.segments import LogReader
from server_stub.runtimes import RAN_IMAGE, Clock, Runtime
from server_stub.service.active import found
from server_stub.service.job_files import JobFiles
from server_stub.service.lookup import JobLookup, check_owner, check_running
from server_stub.store import Store, rows
from server_stub.store.rows import JobRow
from server_stub.users import User
from server_stub.worker_gateway.worker import StackDump

log = logging.getLogger(__name__)
T = TypeVar("T")
# id and version of a job, whose curves, and how many points of each
Asked = tuple[str, int, Whose, int]

_THREADS = 2  # that read logs for their metrics, for up to _LONGEST_S
_LONGEST_S = 10.0  # of reading a log for its metrics; the next request reads on
# longest time for which an answer with metrics is kept for others that ask for the same
_SHARED_S = 5.0
_PATIENCE_S = 0.15  # longest delay of a list by logs that were not read yet; the next list reads on
_NO_ESTIMATE = dict.fromkeys(("left_s", "left_from_s", "left_to_s", "rate"))
# of the facts about a worker's machine, which its launcher writes near the beginning of its log
_SEARCHED = 2 * 2**20
"""Bytes at the beginning of a log that are searched for the description of a machine."""
_BLOCK = 2**20
"""Bytes of a log that are read at once."""
_LINES_MAX = 200
"""Largest number of lines of one block that are looked at."""
_WORKERS_MAX = 64
"""Largest number of workers whose machines are shown."""
_NAMES_MAX = 5000
"""Largest number of names that one worker may send."""
_ALL_NAMES_MAX = 50_000
"""Largest number of names of all workers together."""
_LINE = re.compile(
    ("^" + pattern(rank="-", stream=METRICS, mark="", text=r"(\{.*\})")).encode(), re.MULTILINE
)


class Observer:
    """Event loop only. The methods for users take `owner` as those of `Service` do."""

    def __init__(
        self, runtime: Runtime, clock: Clock, store: Store, lookup: JobLookup, files: JobFiles
    ) -> None:
        self._runtime, self._clock, self._store = runtime, clock, store
        self._lookup, self._files = lookup, files
        self._curves = CurveReader()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="curves")
        self._asked: dict[str, asyncio.Task[JobStacks]] = {}
        self._measured: dict[Asked, tuple[float, asyncio.Task[bytes]]] = {}

    def close(self) -> None:
        """Read no more logs; those that wait for a thread would delay the end
        of the server by 10 s each.
        """
        self._threads.shutdown(wait=False, cancel_futures=True)

    # --- for users

    async def stacks(self, user: User, name: str, owner: str | None = None) -> JobStacks:
        """The stacks of a running job. Requests for one job at the same moment share one answer.
        Raises NotFound; Forbidden: the user is neither its owner nor admin; Conflict: it does not
        run, or forbids it."""
        job = (await self._lookup.find(user, name, owner)).public
        _check(user, job, "stacks")
        check_running(job, "only running processes have stacks")
        return await self.take(job)

    async def metrics(
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
        _check(user, job, "metrics")
        now, asked = time.monotonic(), (job.id, job.version, rank, points)
        self._measured = {
            key: known for key, known in self._measured.items() if now - known[0] < _SHARED_S
        }
        began, answer = self._measured.get(asked, (-math.inf, None))
        if answer is None or now - began >= max_age_s:
            answer = asyncio.create_task(
                self._read_log(partial(self._metrics, job, rank, points), job)
            )
            self._measured[asked] = now, answer
        return await asyncio.shield(answer)

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
        """The use of the job's time. Raises what `metrics` raises."""
        found = await self._lookup.find(user, name, owner)
        job = found.public
        _check(user, job, "use of time")
        events = await self._store.read(rows.list_events, found.row.seq)
        end = job.finished_at or self._clock.now()

        def split(logs: LoggedJob, until: float) -> dict[str, float]:
            marks = {
                attempt: self._curves.marks(logs, attempt, until)
                for attempt in range(1, job.attempt + 1)
            }
            return goodput.split(events, end, marks)

        spent = {
            f"{name}_s": seconds for name, seconds in (await self._read_log(split, job)).items()
        }
        return JobGoodput(job=job.name, attempt=job.attempt, wall_s=sum(spent.values()), **spent)

    async def provenance(self, user: User, name: str, owner: str | None = None) -> JobProvenance:
        """The record of what the job ran. Raises NotFound; Forbidden: the user is
        neither its owner nor admin.
        """
        found = await self._lookup.find(user, name, owner)
        row, job = found.row, found.public
        check_owner(user, job, "can see what it ran")
        request = await asyncio.to_thread(self._files.request_of, row)
        events = await self._store.read(rows.list_events, row.seq)
        succeeded = (
            await self._store.read(rows.succeeded_before, row) if job.state is State.FAILED else []
        )
        return await asyncio.to_thread(
            provenance, job, request, self._lookup.logs(job), events, succeeded
        )

    async def details(self, user: User, job: JobInfo) -> JobProgress | None:
        """The progress of a running job, with its slow rank; of one that has
        ended only what was wrong.
        """
        if not (_is_observable(user, job) and (job.state == State.RUNNING or job.state.final)):
            return None
        found = (await asyncio.to_thread(self._progress, [job], True)).get(job.id)
        if found and job.state.final:
            return JobProgress(nan=found.nan, slow=found.slow) if found.nan or found.slow else None
        return found

    async def progress(self, user: User, jobs: Iterable[JobInfo]) -> dict[str, JobProgress]:
        """The progress of those of these jobs that run and that this user
        may observe, by their ids.
        """
        chosen = [job for job in jobs if job.state == State.RUNNING and _is_observable(user, job)]
        return await asyncio.to_thread(self._progress, chosen) if chosen else {}

    def _progress(self, jobs: Sequence[JobInfo], with_slow: bool = False) -> dict[str, JobProgress]:
        until, now = time.monotonic() + _PATIENCE_S, self._clock.now().timestamp()
        found = {}
        for job in jobs:
            logs = self._lookup.logs(job)
            try:
                progress = self._curves.progress(logs, now, until)
                if progress and job.reason == Reason.HUNG:
                    progress = progress.model_copy(update=_NO_ESTIMATE)
                if with_slow:
                    warnings, straggler = self._curves.slow(logs, until)
                    if slow := "; ".join([*warnings, *([str(straggler)] if straggler else [])]):
                        progress = (progress or JobProgress()).model_copy(update={"slow": slow})
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

    async def take(self, job: JobInfo) -> JobStacks:
        """The stacks of a running job, for a caller that may have them. Raises
        Conflict: it has just ended.
        """
        task = self._asked.get(job.id)
        if task is None:
            task = self._asked[job.id] = asyncio.create_task(self._take(job))
            task.add_done_callback(lambda _: self._asked.pop(job.id))
        return await asyncio.shield(task)

    async def _take(self, job: JobInfo) -> JobStacks:
        dumps = await self._runtime.stacks(job.id, job.attempt)
        if not dumps:
            raise Conflict(f"attempt {job.attempt} of job {job.name} has just ended")
        ranks, problems = await asyncio.to_thread(read_dumps, dumps)
        facts = {"job": job.name, "attempt": job.attempt, "time": self._clock.now()}
        return JobStacks(**facts, ranks=ranks, groups=groups(ranks), problems=problems)

    async def _read_log(self, read: Callable[[LoggedJob, float], T], job: JobInfo) -> T:
        """Call a function that reads the logs of a job in one of the threads for this,
        for at most `_LONGEST_S`.
        """
        logs, until = self._lookup.logs(job), time.monotonic() + _LONGEST_S
        return await asyncio.get_running_loop().run_in_executor(self._threads, read, logs, until)


def _is_observable(user: User, job: JobInfo) -> bool:
    """True if this user may see what the job prints."""
    return job.spec.observe and (user.admin or job.owner == user.name)


def _check(user: User, job: JobInfo, what: str) -> None:
    check_owner(user, job, f"can see its {what}")
    if not job.spec.observe:
        raise Conflict(f"job {job.name} was submitted with observe=False: it shows no {what}")


def read_dumps(dumps: Sequence[StackDump]) -> tuple[list[RankStacks], list[str]]:
    """The ranks of all workers, and why some are missing."""
    ranks, problems = [], []
    for dump in dumps:
        try:
            ranks += read_worker(dump.worker, storable(dump.processes))
        except (
            ValueError,
            TypeError,
            AttributeError,
            OverflowError,
        ) as error:  # a worker may send anything
            problems.append(f"the answer of worker {dump.worker} can't be read: {error}")
        problems += [dump.problem] if dump.problem else []
    return sorted(ranks, key=lambda each: each.rank), problems


def provenance(
    info: JobInfo,
    request: SubmitRequest,
    logs: LoggedJob,
    events: Iterable[Event],
    succeeded: Iterable[JobRow],
) -> JobProvenance:
    """The record of what the job ran. Reads files. `succeeded`: earlier jobs
    of its owner, newest first.
    """
    images = {
        event.message.removeprefix(RAN_IMAGE)
        for event in events
        if event.message.startswith(RAN_IMAGE)
    }
    machines: list[WorkerMachine] = []
    left = _ALL_NAMES_MAX
    for worker in range(min(logs.n_workers, _WORKERS_MAX)):
        machines.append(_machine(logs, worker, min(left, _NAMES_MAX)))
        left -= sum(map(len, _parts(machines[-1])))
    before = (found(row).public for row in succeeded)
    last = next((job.name for job in before if _program(job) == _program(info)), None)
    return JobProvenance(
        submitted=request.provenance, machines=machines, images=sorted(images), last_success=last
    )


def _machine(job: LoggedJob, worker: int, left: int) -> WorkerMachine:
    """The facts that a launcher has written into its log, in lines that follow each
    other. `left`: so many names.
    """
    offset, found = 0, WorkerMachine(worker=worker, hardware={}, seeds={}, packages={})
    with closing(LogReader(log_dir(job.job_dir, job.attempt, worker))) as log:
        while left > 0 and offset < _SEARCHED and (block := log.block(offset, _BLOCK)):
            offset, texts = block.end, _LINE.findall(block.data)[:_LINES_MAX]
            if found.hardware and not texts:
                break
            for text in texts:
                with suppress(ValueError, RecursionError):  # a script can write any line there
                    new = WorkerMachine.model_validate(json.loads(text))
                    for part, facts in zip(_parts(found), _parts(new), strict=True):
                        names = [name for name in facts if name in part or (left := left - 1) >= 0]
                        part.update((name, facts[name]) for name in names)
    return found


def _parts(machine: WorkerMachine) -> tuple[dict[str, str], ...]:
    return machine.hardware, machine.seeds, machine.packages


def _program(info: JobInfo) -> str:
    """The script's path, the function's name, or the command's first two words:
    what two runs have in common.
    """
    words = [word for word in info.spec.command() if not word.startswith("-")][:2]
    return info.function.name if info.function else info.spec.python_script or " ".join(words)
