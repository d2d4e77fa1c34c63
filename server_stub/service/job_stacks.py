"""The stacks of running jobs, for users and for the watchdog."""

import asyncio
from collections.abc import Sequence

from client_lib.errors import Conflict
from client_lib.launcher_protocol.report import storable
from client_lib.spec.stacks import JobStacks, RankStacks, groups, read_worker
from client_lib.spec.wire import JobInfo
from server_stub.runtimes import Runtime
from server_stub.runtimes.tasks import Clock
from server_stub.service.lookup import JobLookup, check_observable, check_running
from server_stub.users import User
from server_stub.worker_gateway.worker import StackDump


class StackTaker:
    """Takes the stacks of the jobs of one service. Event loop only."""

    def __init__(self, runtime: Runtime, clock: Clock, lookup: JobLookup) -> None:
        self._runtime = runtime
        self._clock = clock
        self._lookup = lookup
        self._asked: dict[str, asyncio.Task[JobStacks]] = {}
        """The requests that runtimes have not answered yet, by the id of the job."""

    async def of(self, user: User, name: str, owner: str | None = None) -> JobStacks:
        """The stacks of a running job. Requests for one job at the same moment share one answer.
        Raises NotFound; Forbidden: the user is neither its owner nor admin; Conflict: it does not
        run, or forbids it."""
        job = (await self._lookup.find(user, name, owner)).public
        check_observable(user, job, "stacks")
        check_running(job, "only running processes have stacks")
        return await self.take(job)

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


def read_dumps(dumps: Sequence[StackDump]) -> tuple[list[RankStacks], list[str]]:
    """The ranks of all workers, and why some are missing."""
    ranks = []
    problems = []
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
