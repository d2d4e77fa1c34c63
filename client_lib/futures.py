"""Jobs as `concurrent.futures`: an Executor whose calls are jobs, and waiting for
many jobs at once. Public.
"""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import Any, Generic, TypeVar

from client_lib.errors import ClientLibError, InvalidRequest, JobEnded, NotFound, WaitTimeout
from client_lib.functions import call as functions
from client_lib.functions.call import ResultOf
from client_lib.groups import waited
from client_lib.job import Job, submitted, with_names
from client_lib.spec.states import Reason, State
from client_lib.spec.wire import JobInfo, StateChange
from client_lib.transport.api import LONG_POLL_S, Api, configured

T = TypeVar("T")


class JobFuture(concurrent.futures.Future[T], Generic[T]):
    """The future of a call. It can be cancelled until the job runs."""

    def __init__(self, job: Job[T], needed: Sequence[JobFuture[Any]]) -> None:
        """`job`: for its logs and metrics. `needed`: the futures among its arguments."""
        super().__init__()
        self.job = job
        self.needed = needed
        self._beginning = threading.Lock()
        self._began: bool | None = None

    def begin(self) -> bool:
        """Mark the call as running, and return False if it was cancelled before.
        Repeated calls change nothing.
        """
        with self._beginning:
            if self._began is None:
                self._began = self.set_running_or_notify_cancel()
            return self._began


class Executor(concurrent.futures.Executor):
    """A `concurrent.futures.Executor` whose calls run as jobs; the result of a call is the value of
    rank 0. ::

        with client_lib.Executor(n_workers=2) as executor:
            futures = [executor.submit(train, lr) for lr in (0.1, 0.01)]
            for future in concurrent.futures.as_completed(futures):
                print(future.job.name, future.result())

    Arguments may be futures of such executors, also within lists, tuples and dicts: the job waits
    on the server for the jobs of these futures (`after`), and its ranks get the results. It fails
    if one of them does not succeed. No job needs this process to go on, and
    `get_job(name).result()` reads its result.

    An exception of the function, or what ended the job (JobFailed, JobCancelled), is raised by
    `future.result()`. If the server does not answer for `retry_s`, open futures get
    ServerUnreachable; their jobs go on.
    """

    def __init__(self, *, client: Api | None = None, **options: Any) -> None:
        """`options`: arguments of Job, for each call. `client`: the server; None: the configured
        one.

        Raises InvalidRequest for a wrong option, TypeError for one that Job does not have.
        """
        for name in ("script", "args", "kwargs", "name"):
            if name in options:
                raise TypeError(f"Executor() takes no {name}: each call of submit() has its own")
        Job(script=lambda: None, client=client, **options)  # only the options are checked
        self._api = client or configured()
        self._options = options
        self._lock = threading.Lock()
        self._shut = False
        self._futures: set[JobFuture[Any]] = set()
        self._by_id: dict[str, JobFuture[Any]] = {}
        """The futures of jobs that are not final as far as is known."""
        self._cursor: str | None = None
        self._watching = False

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> JobFuture[T]:
        """Submit the call as a job, which is stored when this returns; see `Job.submit` for what it
        raises.

        Raises RuntimeError after `shutdown`; InvalidRequest: an argument is the future of another
        kind of executor, or of another server.
        """
        future = self._future(fn, args, kwargs)
        with self._lock:
            if self._shut:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._futures.add(future)
        future.add_done_callback(lambda _: self._forget(future))
        try:
            self._send(future)
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
        """Yield the results in order, as other executors do; a job makes `chunksize`
        calls, one after another.
        """
        if chunksize <= 1:
            return super().map(fn, *iterables, timeout=timeout, **options)
        calls = zip(*iterables, strict=False)
        chunks = iter(lambda: list(islice(calls, chunksize)), [])
        return chain.from_iterable(super().map(_each(fn), chunks, timeout=timeout, **options))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more calls. `wait`: until all calls are done. `cancel_futures`: cancel calls
        that do not run yet.
        """
        with self._lock:
            self._shut = True
            futures = list(self._futures)
        if cancel_futures:
            for future in futures:
                future.cancel()
        if wait:
            concurrent.futures.wait(futures)

    # --- to the server

    def _future(self, fn: Callable[..., T], args: Any, kwargs: Any) -> JobFuture[T]:
        after = with_names({"after": self._options.get("after") or []})["after"]
        results: dict[JobFuture[Any], ResultOf] = {}

        def placeholder(each: concurrent.futures.Future[Any]) -> ResultOf:
            if not (isinstance(each, JobFuture) and each.job.client.endpoint == self._api.endpoint):
                what = f"an argument is {each!r}, which is no job of this server"
                raise InvalidRequest(what, hint="pass its result()")
            return results.setdefault(each, ResultOf(len(after) + len(results), str(each.job.name)))

        args, kwargs = _replaced((args, kwargs), placeholder)
        options = self._options | {"after": [*after, *(each.job for each in results)]}
        return JobFuture(
            Job(script=fn, args=args, kwargs=kwargs, client=self._api, **options), list(results)
        )

    def _send(self, future: JobFuture[T]) -> None:
        with self._lock:
            self._cursor = before = self._cursor or self._api.state_changes().cursor
        info = submitted(future.job).last_info
        assert info
        with self._lock:
            self._by_id[info.id] = future
            if not self._watching:
                threading.Thread(
                    target=self._watch, name="client-lib-executor", daemon=True
                ).start()
                self._watching = True
            is_read = self._cursor != before
        if is_read:  # changes came meanwhile, when it was not known that they are of this job
            try:
                self._look_at([future])
            except ClientLibError as error:  # the job is accepted and goes on
                self._fail(future, error)
        if future.cancelled():  # while it was sent
            self._forget(future)

    def _forget(self, future: JobFuture[Any]) -> None:
        future.needed = ()  # a long chain would keep all earlier results
        info = future.job.last_info
        with self._lock:
            self._futures.discard(future)
            if info:
                self._by_id.pop(info.id, None)
        if future.cancelled():
            future.begin()  # wakes those who wait for it
            if info:
                future.job.cancel()

    # --- from the server

    def _watch(self) -> None:
        """Follow all jobs of this executor with one long poll, in one
        thread, until none is open.
        """
        while True:
            with self._lock:
                futures = list(self._by_id.values())
                if not futures:
                    self._watching = False
                    return
            try:
                page = self._api.state_changes(self._cursor, wait_s=LONG_POLL_S)
                with self._lock:
                    self._cursor, futures = page.cursor, list(self._by_id.values())
                if not page.complete:
                    self._look_at(futures)
                for change in page.changes:
                    self._note(change)
            except Exception as error:  # noqa: BLE001  # a future that nobody watches would hang its program
                for future in futures:
                    self._fail(future, error)

    def _look_at(self, futures: Iterable[JobFuture[Any]]) -> None:
        for future in futures:
            try:
                info = future.job.info()
                self._note(StateChange(id=info.id, state=info.state))
            except NotFound as deleted:
                self._fail(future, deleted)

    def _note(self, change: StateChange) -> None:
        with self._lock:
            future = self._by_id.get(change.id)
            if future and change.state.final:
                del self._by_id[change.id]  # one thread alone reads its result
        if future and change.state.final:
            self._settle(future)
        elif future and change.state is State.RUNNING:
            future.begin()

    def _settle(self, future: JobFuture[Any]) -> None:
        if not future.begin():
            return
        try:
            value = future.job.result(trust=True)
        except BaseException as error:  # noqa: BLE001  # the function may raise any
            if isinstance(error, JobEnded) and error.info.reason is Reason.DEPENDENCY_FAILED:
                ended = (
                    each.exception()
                    for each in future.needed
                    if each.done() and not each.cancelled()
                )
                error.__cause__ = next(filter(None, ended), None)
            self._fail(future, error)
        else:
            # the thread that submits has ended it
            with suppress(concurrent.futures.InvalidStateError):
                future.set_result(value)

    @staticmethod
    def _fail(future: JobFuture[Any], error: BaseException) -> None:
        if future.begin():
            # the thread that watches the jobs has ended it
            with suppress(concurrent.futures.InvalidStateError):
                future.set_exception(error)


def _each(fn: Callable[..., T]) -> Callable[[list[tuple[Any, ...]]], list[T]]:
    def calls(
        chunk: list[tuple[Any, ...]],
    ) -> list[T]:  # travels by value: a worker may lack this package
        return [fn(*args) for args in chunk]

    calls.__name__ = functions.name_of(fn)
    return calls


def _replaced(value: Any, placeholder: Callable[[concurrent.futures.Future[Any]], ResultOf]) -> Any:
    """The value with a placeholder for each future."""
    if isinstance(value, concurrent.futures.Future):
        return placeholder(value)
    if type(value) is dict:
        return {key: _replaced(part, placeholder) for key, part in value.items()}
    return (
        type(value)(_replaced(part, placeholder) for part in value)
        if type(value) in (list, tuple)
        else value
    )


# --- jobs


def wait_all(jobs: Iterable[Job[Any]], timeout_s: float | None = None) -> list[JobInfo]:
    """Wait until all jobs are final; return their last infos, in this order.

    Raises:
        JobFailed, JobCancelled: when all are final, the error of the first job that did not
            succeed; see `Job.wait`.
        WaitTimeout: a job is not final after `timeout_s`.
    """
    infos, ended = waited(jobs, timeout_s)
    if ended:
        raise ended[0]
    return infos


def as_completed(jobs: Iterable[Job[Any]], timeout_s: float | None = None) -> Iterator[Job[Any]]:
    """Yield each job when it is final, also a failed one: `job.wait()` or `job.result()` raises its
    error.

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
            f"these are jobs of {api.endpoint} and {others[0].endpoint}",
            hint="wait for each server's",
        )
    changes = api.state_changes()
    while True:
        changed = [change.id for change in changes.changes if change.state.final]
        for job_id in changed if changes.complete else list(left):
            if job_id in left and _has_ended(left[job_id]):
                yield left.pop(job_id)
        if not left:
            return
        wait_s = LONG_POLL_S if deadline is None else min(LONG_POLL_S, deadline - time.monotonic())
        if wait_s <= 0:
            raise WaitTimeout(
                f"{len(left)} jobs are not final yet, among them {next(iter(left.values())).name}"
            )
        changes = api.state_changes(changes.cursor, wait_s=wait_s)


def _has_ended(job: Job[Any]) -> bool:
    try:
        return job.state.final
    except NotFound:  # it was deleted, which its `wait()` tells
        return True
