"""Jobs as `concurrent.futures`: an Executor whose calls are jobs, and waiting for many jobs at once. Public.

One thread watches all jobs of an executor with one long poll (`Api.state_changes`).
"""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any, Generic, TypeVar

from client_lib.errors import InvalidRequest, JobEnded, NotFound, WaitTimeout
from client_lib.functions import call as functions
from client_lib.job import Job
from client_lib.spec.states import State
from client_lib.spec.wire import JobInfo, StateChange
from client_lib.transport.api import LONG_POLL_S, Api, configured

T = TypeVar("T")
_NO_OPTIONS = ("script", "args", "kwargs", "name")


class JobFuture(concurrent.futures.Future[T], Generic[T]):
    """The future of a call. It can be cancelled until the job runs."""

    job: Job[T] | None = None
    """The job, for its logs and metrics; None while futures among the arguments are not done."""

    def __init__(self) -> None:
        super().__init__()
        self._beginning = threading.Lock()
        self._began: bool | None = None

    def begin(self) -> bool:
        """Mark the call as running, and return False if it was cancelled before. Repeated calls change nothing."""
        with self._beginning:
            if self._began is None:
                self._began = self.set_running_or_notify_cancel()
            return self._began


class Executor(concurrent.futures.Executor):
    """A `concurrent.futures.Executor` whose calls run as jobs; the result of a call is the value of rank 0. ::

        with client_lib.Executor(n_workers=2) as executor:
            futures = [executor.submit(train, lr) for lr in (0.1, 0.01)]
            for future in concurrent.futures.as_completed(futures):
                print(future.job.name, future.result())

    Arguments may be futures, also within lists, tuples and dicts: the job is submitted when they are done, with their
    results, and the exception of one of them becomes its own. These calls need this process; jobs that are submitted
    go on without it, and `get_job(name).result()` reads their results.

    An exception of the function, or what ended the job (JobFailed, JobCancelled), is raised by `future.result()`. If
    the server does not answer for `retry_s`, open futures get ServerUnreachable; their jobs go on.
    """

    def __init__(self, *, client: Api | None = None, **options: Any) -> None:
        """`options`: arguments of Job, for each call. `client`: the server; None: the configured one.

        Raises InvalidRequest for a wrong option, TypeError for one that Job does not have.
        """
        for name in _NO_OPTIONS:
            if name in options:
                raise TypeError(f"Executor() takes no {name}: each call of submit() has its own")
        Job(script=_nothing, client=client, **options)
        self._api, self._options = client or configured(), options
        self._lock = threading.Lock()
        self._shut = False
        self._futures: set[JobFuture[Any]] = set()
        self._by_id: dict[str, JobFuture[Any]] = {}
        """The futures of jobs that are not final as far as is known."""
        self._cursor: str | None = None
        self._sending, self._unclaimed = 0, list[StateChange]()
        """Changes that came while submits wait for their answers, and so may be of their jobs."""
        self._watching = False

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> JobFuture[T]:
        """Submit the call as a job, which is stored when this returns; see `Job.submit` for what it raises.

        Raises RuntimeError after `shutdown`.
        """
        future: JobFuture[T] = JobFuture()
        with self._lock:
            if self._shut:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._futures.add(future)
        future.add_done_callback(lambda _: self._forget(future))
        try:
            self._send_when_ready(future, fn, args, kwargs)
        except BaseException:
            future.cancel()
            raise
        return future

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        **options: Any,
    ) -> Iterator[T]:
        """Yield the results in order, as other executors do; a job makes `chunksize` calls, one after another."""
        if chunksize <= 1:
            return super().map(fn, *iterables, timeout=timeout, **options)
        calls = zip(*iterables, strict=False)
        chunks = iter(lambda: list(islice(calls, chunksize)), [])
        return chain.from_iterable(super().map(_each(fn), chunks, timeout=timeout, **options))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more calls. `wait`: until all are done. `cancel_futures`: cancel those that do not run yet."""
        with self._lock:
            self._shut, futures = True, list(self._futures)
        if cancel_futures:
            for future in futures:
                future.cancel()
        if wait:
            concurrent.futures.wait(futures)

    # --- to the server

    def _send_when_ready(self, future: JobFuture[T], fn: Callable[..., T], args: Any, kwargs: Any) -> None:
        for needed in _futures_in((args, kwargs)):
            if not needed.done():
                needed.add_done_callback(lambda _: self._send_later(future, fn, args, kwargs))
                return
        values = _resolved((args, kwargs))
        self._send(future, Job(script=fn, args=values[0], kwargs=values[1], client=self._api, **self._options))

    def _send_later(self, future: JobFuture[T], fn: Callable[..., T], args: Any, kwargs: Any) -> None:
        """In the thread that has completed an argument."""
        if future.cancelled():
            return
        try:
            self._send_when_ready(future, fn, args, kwargs)
        except Exception as error:  # noqa: BLE001  # it is the future's
            self._fail(future, error)

    def _send(self, future: JobFuture[T], job: Job[T]) -> None:
        job.submit_raises = True  # False would return an error as a text
        with self._lock:
            self._sending += 1
        try:
            with self._lock:
                self._cursor = self._cursor or self._api.state_changes().cursor
            job.submit()
            future.job = job
        finally:
            with self._lock:
                self._sending -= 1
                seen, self._unclaimed = self._unclaimed, self._unclaimed if self._sending else []
                if future.job is not None:
                    self._by_id[_id_of(job)] = future
                    if not self._watching:
                        self._watching = True
                        threading.Thread(target=self._watch, name="client-lib-executor", daemon=True).start()
        for change in seen:
            self._note(change)
        if future.cancelled():  # while it was sent
            self._forget(future)

    def _forget(self, future: JobFuture[Any]) -> None:
        """Called when it is done."""
        with self._lock:
            self._futures.discard(future)
            if future.job:
                self._by_id.pop(_id_of(future.job), None)
        if future.cancelled():
            future.begin()  # wakes those who wait for it
            if future.job:
                future.job.cancel()

    # --- from the server

    def _watch(self) -> None:
        """Follow the jobs until none is open."""
        while True:
            with self._lock:
                if not self._by_id:
                    self._watching = False
                    return
            try:
                page = self._api.state_changes(self._cursor, wait_s=LONG_POLL_S)
                self._cursor = page.cursor
                if not page.complete:
                    self._look_at_all()
                for change in page.changes:
                    self._note(change)
            except Exception as error:  # noqa: BLE001  # a future that nobody watches would hang its program
                with self._lock:
                    lost = list(self._by_id.values())
                for future in lost:
                    self._fail(future, error)

    def _look_at_all(self) -> None:
        with self._lock:
            futures = list(self._by_id.items())
        for job_id, future in futures:
            try:
                assert future.job
                self._note(StateChange(id=job_id, state=future.job.info().state))
            except NotFound as deleted:
                self._fail(future, deleted)

    def _note(self, change: StateChange) -> None:
        with self._lock:
            future = self._by_id.get(change.id)
            if future is None:
                if self._sending:
                    self._unclaimed.append(change)
                return
        if change.state.final:
            self._settle(future)
        elif change.state is State.RUNNING:
            future.begin()

    def _settle(self, future: JobFuture[Any]) -> None:
        if future.job is None or not future.begin():
            return
        try:
            value = future.job.result(trust=True)
        except BaseException as error:  # noqa: BLE001  # the function may raise any
            self._fail(future, error)
        else:
            future.set_result(value)

    @staticmethod
    def _fail(future: JobFuture[Any], error: BaseException) -> None:
        if future.begin() and not future.done():
            future.set_exception(error)


def _nothing() -> None:
    """Stand-in without parameters: only the options are checked."""


def _each(fn: Callable[..., T]) -> Callable[[list[tuple[Any, ...]]], list[T]]:
    def calls(chunk: list[tuple[Any, ...]]) -> list[T]:  # travels by value: a worker may lack this package
        return [fn(*args) for args in chunk]

    calls.__name__ = functions.name_of(fn)
    return calls


def _futures_in(value: Any) -> Iterator[concurrent.futures.Future[Any]]:
    if isinstance(value, concurrent.futures.Future):
        yield value
    elif type(value) in (list, tuple, dict):
        for part in value.values() if type(value) is dict else value:
            yield from _futures_in(part)


def _resolved(value: Any) -> Any:
    """The value with the results of its futures in their places. Raises their exceptions."""
    if isinstance(value, concurrent.futures.Future):
        return value.result()
    if type(value) is dict:
        return {key: _resolved(part) for key, part in value.items()}
    return type(value)(map(_resolved, value)) if type(value) in (list, tuple) else value


def _id_of(job: Job[Any]) -> str:
    assert job.last_info
    return job.last_info.id


# --- jobs


def wait_all(jobs: Iterable[Job[Any]], timeout_s: float | None = None) -> list[JobInfo]:
    """Wait until all jobs are final; return their last infos, in this order.

    Raises:
        JobFailed, JobCancelled: when all are final, that of the first that did not succeed; see `Job.wait`.
        WaitTimeout: one is not final after `timeout_s`.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    infos, first = list[JobInfo](), None
    for job in jobs:
        try:
            infos.append(job.wait(None if deadline is None else max(0.0, deadline - time.monotonic())))
        except JobEnded as ended:
            first = first or ended
    if first:
        raise first
    return infos


def as_completed(jobs: Iterable[Job[Any]], timeout_s: float | None = None) -> Iterator[Job[Any]]:
    """Yield each job when it is final, also a failed one: `job.wait()` or `job.result()` raises its error.

    Raises:
        WaitTimeout: not all are final after `timeout_s`.
        InvalidRequest: they are jobs of several servers.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    left = {(job.last_info or job.info()).id: job for job in jobs}
    if not left:
        return
    api, *others = {job.client.endpoint: job.client for job in left.values()}.values()
    if others:
        raise InvalidRequest(
            f"these are jobs of {api.endpoint} and {others[0].endpoint}", hint="wait for each server's"
        )
    changes = api.state_changes()
    while True:
        changed = [change.id for change in changes.changes if change.state.final]
        for job_id in changed if changes.complete else list(left):
            if job_id in left and left[job_id].state.final:
                yield left.pop(job_id)
        if not left:
            return
        wait_s = LONG_POLL_S if deadline is None else min(LONG_POLL_S, deadline - time.monotonic())
        if wait_s <= 0:
            raise WaitTimeout(f"{len(left)} jobs are not final yet, among them {next(iter(left.values())).name}")
        changes = api.state_changes(changes.cursor, wait_s=wait_s)
