"""Several jobs of a server as one sequence: lists and groups. Public by
`list_jobs`, `get_group`, `Job.each`.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from itertools import islice
from typing import TYPE_CHECKING, Any, overload

from client_lib.errors import JobEnded
from client_lib.reports import curves, table
from client_lib.spec.states import State
from client_lib.spec.wire import GroupInfo, JobInfo
from client_lib.transport.api import Api

if TYPE_CHECKING:
    from client_lib.job import Job
    from client_lib.spec.metrics import JobMetrics

MakeJob = Callable[[JobInfo], "Job"]
"""Makes a Job from a JobInfo. It is an argument because `client_lib.job` imports this module."""
_LISTED = 50
"""Jobs in the repr of a list."""


def waited(jobs: Iterable[Job], timeout: float | None) -> tuple[list[JobInfo], list[JobEnded]]:
    """Wait until all jobs are final: the infos of jobs that SUCCEEDED, and the errors of the
    others. Raises WaitTimeout: a job is not final after `timeout` seconds."""
    deadline = None if timeout is None else time.monotonic() + timeout
    infos = list[JobInfo]()
    ended = list[JobEnded]()
    for job in jobs:
        left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            infos.append(job.wait(left_s))
        except JobEnded as problem:
            ended.append(problem)
    return infos, ended


class JobList(Sequence["Job"]):
    """Jobs of a server as they were when their page was fetched. `len` and
    negative indices fetch all pages.
    """

    def __init__(self, make: MakeJob, find: Callable[[], Iterator[JobInfo]]) -> None:
        self._make = make
        self._find = find
        self._forget()

    def _forget(self) -> None:
        """Fetch the pages again when they are needed."""
        self._found = self._find()
        self._infos = list[JobInfo]()

    @overload
    def __getitem__(self, index: int) -> Job: ...
    @overload
    def __getitem__(self, index: slice) -> list[Job]: ...
    def __getitem__(self, index: int | slice) -> Job | list[Job]:
        if not isinstance(index, slice):
            needed = None if index < 0 else index + 1
            return self._make(self._first(needed)[index])
        start = index.start or 0
        step = index.step or 1
        needed = index.stop
        if needed is None or min(start, needed, step) < 0:
            needed = None
        return [self._make(info) for info in self._first(needed)[index]]

    def __len__(self) -> int:
        return len(self._first(None))

    def __bool__(self) -> bool:
        return bool(self._first(1))

    def _first(self, count: int | None) -> list[JobInfo]:
        """At least so many jobs, if there are as many; None: all."""
        missing = None if count is None else max(0, count - len(self._infos))
        try:
            self._infos += islice(self._found, missing)
        except BaseException:  # a generator that has raised looks as if the last page had been read
            self._forget()
            raise
        return self._infos

    def __repr__(self) -> str:
        """The table of `client-lib list`."""
        from client_lib.reports import display

        return display.jobs_as_text(self._first(_LISTED + 1), _LISTED, datetime.now(timezone.utc))

    def _repr_html_(self) -> str:
        from client_lib.reports import display

        return display.jobs_as_html(self._first(_LISTED + 1), _LISTED, datetime.now(timezone.utc))


class Group(JobList):
    """Many runs of one job that were submitted as one: a sequence of its jobs, by their index. ::

        group = Job(script="train.py").each("lr-scan", {"lr": [0.1, 0.01], "seed": range(5)})
        group = client_lib.get_group("lr-scan")     # the same, in another process
        group.wait()                                # raises JobFailed if one failed
        group.best("val_loss").download()

    The jobs are fetched when they are first needed, and again by `info` and `wait`.
    """

    def __init__(self, client: Api, name: str, make: MakeJob, last: GroupInfo) -> None:
        """Store the arguments; `get_group` is the public way. `last`: the group as the
        server last described it.
        """
        self.client = client
        self.name = name
        self.last_info = last
        super().__init__(make, self._members)

    def _members(self) -> Iterator[JobInfo]:
        found = self.client.list_jobs(group=self.name)
        yield from sorted(found, key=lambda info: info.group.index if info.group else 0)

    def info(self) -> GroupInfo:
        """The group as it is now, with the number of its jobs in each state. Raises NotFound: the
        group is gone.
        """
        return self._now(self.client.group_info(self.name))

    def _now(self, info: GroupInfo) -> GroupInfo:
        self._forget()
        self.last_info = info
        return info

    @property
    def state(self) -> State:
        """The state of the group now. PENDING while all jobs wait, RUNNING until all have ended;
        then FAILED if a job failed, else CANCELLED if a job was cancelled, else SUCCEEDED."""
        return self.info().state

    def wait(self, timeout: float | None = None) -> GroupInfo:
        """Block until all jobs have ended; return the group if all SUCCEEDED.

        Raises:
            JobFailed, JobCancelled: of the first that ended otherwise, when all have ended; see
                `Job.wait`.
            WaitTimeout: one has not ended after `timeout` seconds; the message names it and its
                state.
        """
        self._forget()
        open_or_failed = [info for info in self._first(None) if info.state is not State.SUCCEEDED]
        _, ended = waited(map(self._make, open_or_failed), timeout)
        if ended:
            raise min(ended, key=lambda each: each.info.finished_at)
        return self.info()

    def cancel(self) -> GroupInfo:
        """Order the end of all its jobs, in one request; no job starts any more. They end later
        (`wait`).
        """
        return self._now(self.client.cancel_group(self.name))

    def resubmit(self, *, failed: bool = False) -> GroupInfo:
        """Run its jobs again; `failed`: only jobs that are FAILED or CANCELLED. New jobs take their
        places in the group, with the code, arguments, environment and secrets of the first submit,
        and copies of the checkpoints. The earlier jobs move to the group that `info().earlier`
        names. Raises Conflict: an earlier job has not ended, or no job has failed.
        """
        return self._now(self.client.resubmit_group(self.name, uuid.uuid4().hex, failed=failed))

    def metrics(self) -> dict[str, JobMetrics]:
        """The metrics of each job by its name; see `Job.metrics`."""
        return {info.name: self.client.job_metrics(info.name) for info in self._first(None)}

    def best(self, by: str, *, largest: bool | None = None) -> Job:
        """The job with the best value of a metric of rank 0. `largest`: True if the largest is the
        best; None: the name of the metric tells, else it is the smallest. Raises NotFound: no job
        has this metric."""
        best = curves.ranked(self._measured(), by, largest)[0]["name"]
        return next(self._make(info) for info in self._first(None) if info.name == best)

    def compare(self) -> list[Mapping[str, Any]]:
        """`name`, `state`, `arguments` (if they differ) and `metrics` (`last` and `best` values of
        rank 0) of each job, as dicts: `pandas.json_normalize(group.compare())` is a table."""
        return curves.compared(self._measured())

    def _measured(self) -> list[curves.Measured]:
        """The jobs with their curves, as the reports read them."""
        measured = zip(self._first(None), self.metrics().values(), strict=True)
        return [
            (info.model_dump(mode="json"), found.model_dump(mode="json")["curves"])
            for info, found in measured
        ]

    def __repr__(self) -> str:
        last = self.last_info
        told = table.group_as_job(last.model_dump(mode="json"))["told"]
        return f"Group({self.name!r}, {last.state} when last asked: {told})"

    def _repr_html_(self) -> str:
        """The table of its jobs as they are now."""
        self._forget()
        return super()._repr_html_()
