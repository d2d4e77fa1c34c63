"""Takes the stacks of the processes of running jobs."""

from __future__ import annotations

import asyncio

from client_lib.errors import Conflict, Forbidden, NotSupported
from client_lib.spec.stacks import JobStacks, read_worker
from client_lib.spec.states import State
from client_lib.spec.wire import JobInfo
from server_stub.runtimes import Runtime
from server_stub.service.clock import Clock
from server_stub.service.values import User
from server_stub.worker_gateway.stacks import StackDump


class Observer:
    """Event loop only."""

    def __init__(self, runtime: Runtime, clock: Clock, *, allowed: bool) -> None:
        """`allowed`: the server's setting."""
        self._runtime, self._clock, self._allowed = runtime, clock, allowed
        self._asked: dict[str, asyncio.Task[JobStacks]] = {}

    async def stacks(self, user: User, job: JobInfo) -> JobStacks:
        """See `Service.stacks`."""
        self._check(user, job)
        return await self.take(job)

    async def take(self, job: JobInfo) -> JobStacks:
        """The stacks of a running job, for a caller that may have them. Raises Conflict: it has just ended."""
        task = self._asked.get(job.id)
        if task is None:
            task = self._asked[job.id] = asyncio.create_task(self._take(job))
            task.add_done_callback(lambda _: self._asked.pop(job.id))
        return await asyncio.shield(task)

    def _check(self, user: User, job: JobInfo) -> None:
        if job.owner != user.name and not user.admin:
            raise Forbidden(f"only {job.owner}, the owner of job {job.name}, and admins can see its stacks")
        if not self._allowed:
            raise NotSupported(
                "this server takes no stacks (observe=False)",
                hint="its operator can set CLIENT_LIB_SERVER_OBSERVE=true",
            )
        if not job.spec.observe:
            raise Conflict(f"job {job.name} was submitted with observe=False: its stacks can't be taken")
        if job.state != State.RUNNING:
            raise Conflict(
                f"job {job.name} is {job.state}: only running processes have stacks",
                hint=f"`client-lib explain {job.name}` tells why it does not run",
            )

    async def _take(self, job: JobInfo) -> JobStacks:
        dumps = await self._runtime.stacks(job.id, job.attempt)
        if not dumps:
            raise Conflict(f"attempt {job.attempt} of job {job.name} has just ended")
        return await asyncio.to_thread(self._read, job, dumps)

    def _read(self, job: JobInfo, dumps: list[StackDump]) -> JobStacks:
        ranks, problems = [], []
        for dump in dumps:
            try:
                ranks += read_worker(dump.worker, dump.processes)
            except (ValueError, TypeError, AttributeError, OverflowError) as error:  # a worker may send anything
                problems.append(f"the answer of worker {dump.worker} can't be read: {error}")
            problems += [dump.problem] if dump.problem else []
        ranks.sort(key=lambda each: each.rank)
        return JobStacks(job=job.name, attempt=job.attempt, time=self._clock.now(), ranks=ranks, problems=problems)
