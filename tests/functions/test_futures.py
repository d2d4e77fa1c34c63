"""The executor and the waits for many jobs, as users of `concurrent.futures` know them:
real jobs of a real server.
"""

import concurrent.futures
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from client_lib import (
    Client,
    Executor,
    InvalidRequest,
    Job,
    JobCancelled,
    JobFailed,
    NotFound,
    NotSupported,
    ServerUnreachable,
    State,
    WaitTimeout,
    as_completed,
    get_job,
    list_jobs,
    wait_all,
)
from client_lib.futures import JobFuture
from client_lib.spec.request import SubmitRequest
from client_lib.spec.wire import JobInfo
from tests.kit.local_server import stop_server
from tests.kit.odd_server import http, odd_server
from tests.kit.waiting import until

__all__ = ["odd_server"]
WITHIN_S = 60.0


def add(one: int, two: int) -> int:
    return one + two


def wait_for(path: Path) -> str:
    while not path.exists():
        time.sleep(0.01)
    return path.read_text()


def fail() -> None:
    raise KeyError("lr")


@pytest.fixture
def executor() -> Iterator[Executor]:
    with Executor(grace_s=1) as executor:
        yield executor


def test_it_is_an_executor_of_the_standard_library(executor: Executor) -> None:
    assert isinstance(executor, concurrent.futures.Executor)
    future = executor.submit(add, 1, two=2)
    assert isinstance(future, concurrent.futures.Future)
    assert future.result(WITHIN_S) == 3
    assert future.job is not None
    assert future.job.state is State.SUCCEEDED
    assert list(executor.map(add, range(3), [10, 20, 30], timeout=WITHIN_S)) == [10, 21, 32]
    assert list(executor.map(add, range(5), range(5), timeout=WITHIN_S, chunksize=3)) == [
        0,
        2,
        4,
        6,
        8,
    ]


def test_a_machine_without_a_free_thread_fails_one_call_and_not_those_after_it(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(
        _: threading.Thread,
    ) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as full:
        # root, who runs tests, has no limit that a test could lower
        full.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(RuntimeError, match="can't start"):
            executor.submit(add, 1, 2)
    assert executor.submit(add, 1, 2).result(WITHIN_S) == 3


def test_options_are_of_each_job_and_the_value_is_of_rank_0() -> None:
    with Executor(n_workers=2, labels={"team": "a"}) as executor:
        future = executor.submit(lambda rank: rank)
        assert future.result(WITHIN_S) == 0
    assert future.job is not None
    assert future.job.results() == [0, 1]
    assert future.job.spec.labels == {"team": "a"}
    with pytest.raises(InvalidRequest, match="n_workers"):
        Executor(n_workers=0)
    with pytest.raises(TypeError, match="takes no script"):
        Executor(script="train.py")


def test_what_the_function_raises_comes_out_of_the_future(executor: Executor) -> None:
    failed: JobFuture[Any] = executor.submit(fail)
    well: JobFuture[Any] = executor.submit(add, 1, 1)
    done, _ = concurrent.futures.wait([failed, well], WITHIN_S)
    assert done == {failed, well}
    assert isinstance(failed.exception(), KeyError)
    assert isinstance(failed.exception().__cause__, JobFailed)  # type: ignore[union-attr]


def test_one_thread_watches_all_and_they_complete_in_the_order_of_their_ends(
    executor: Executor, folder: Path
) -> None:
    waiting = [executor.submit(wait_for, folder / str(number)) for number in range(3)]
    (folder / "1").write_text("one")
    first = next(concurrent.futures.as_completed(waiting, WITHIN_S))
    assert (first, first.result()) == (waiting[1], "one")
    assert [thread.name for thread in threading.enumerate()].count("client-lib-executor") == 1
    for number in (0, 2):
        (folder / str(number)).write_text("")
    concurrent.futures.wait(waiting, WITHIN_S)
    until(lambda: "client-lib-executor" not in [thread.name for thread in threading.enumerate()])


def test_a_job_that_does_not_run_yet_can_be_cancelled_and_a_running_one_cannot(
    folder: Path,
) -> None:
    with Executor(setup="sleep 100", grace_s=1) as executor:
        pending = executor.submit(add, 1, 1)
        assert pending.cancel()
        assert concurrent.futures.wait([pending], WITHIN_S).done == {pending}
    with pytest.raises(concurrent.futures.CancelledError):
        pending.result()
    with pytest.raises(JobCancelled):
        _job_of(pending).wait(WITHIN_S)
    with Executor(grace_s=1) as executor:
        running = executor.submit(wait_for, folder / "go")
        until(running.running)
        assert not running.cancel()
        _job_of(running).cancel()
        assert isinstance(running.exception(WITHIN_S), JobCancelled)


def _job_of(future: JobFuture[Any]) -> Job[Any]:
    assert future.job is not None
    return future.job


def test_arguments_may_be_futures(executor: Executor, folder: Path) -> None:
    first = executor.submit(wait_for, folder / "go")
    second = executor.submit(lambda values: "-".join(values["all"]), {"all": [first, first, "x"]})
    assert _job_of(second).spec.after == [_job_of(first).name], "it is submitted at once"
    assert _job_of(second).spec.args == [
        f"{{'all': [<result of {_job_of(first).name}>, <result of {_job_of(first).name}>, 'x']}}"
    ]
    (folder / "go").write_text("text")
    assert second.result(WITHIN_S) == "text-text-x"
    assert executor.submit(add, first, two=second).result(WITHIN_S) == "texttext-text-x"
    assert second.needed == (), "a long chain would keep all results"
    with Executor(n_workers=2, after=[first.job]) as wide:
        assert _job_of(wide.submit(lambda rank, text: (rank, text), text=second)).results() == [
            (rank, "text-text-x") for rank in (0, 1)
        ]


def test_a_call_ends_with_the_one_that_it_needs(executor: Executor, folder: Path) -> None:
    failed = executor.submit(fail)
    last = executor.submit(add, executor.submit(add, failed, 1), 1)
    error = last.exception(WITHIN_S)
    assert isinstance(error, JobFailed)
    assert "(DependencyFailed)" in str(error)
    assert isinstance(error.__cause__, JobFailed)
    assert isinstance(error.__cause__.__cause__, KeyError)
    pending = Executor(setup="sleep 100", grace_s=1).submit(add, 1, 1)
    needs = executor.submit(add, pending, 1)
    assert pending.cancel()
    assert f"{_job_of(pending).name} is CANCELLED" in str(needs.exception(WITHIN_S))


def test_a_result_that_is_no_argument_is_said_and_futures_of_others_are_refused(
    executor: Executor,
) -> None:
    error = executor.submit(add, executor.submit(threading.Lock), 1).exception(WITHIN_S)
    assert "can't be an argument: what rank 0 returned, a lock, can't be pickled" in str(error)
    with pytest.raises(InvalidRequest, match="which is no job of this server"):
        executor.submit(add, concurrent.futures.Future(), 1)


def test_what_cannot_be_pickled_is_refused_at_once_and_nothing_is_left_open(
    executor: Executor,
) -> None:
    with pytest.raises(InvalidRequest, match="argument 0 of add can't be pickled"):
        executor.submit(add, threading.Lock(), 1)
    assert executor.submit(add, 1, 1).result(WITHIN_S) == 2


def test_a_job_that_was_accepted_goes_on_when_the_server_does_not_answer_after_it(
    folder: Path,
) -> None:
    class Deaf(Client):
        lost = ""

        def submit_request(self, request: SubmitRequest, key: str) -> JobInfo:
            info = super().submit_request(request, key)
            if info.spec.script == "add()":  # the end of the other job comes while this one is sent
                self.lost = info.name
                (folder / "go").write_text("")
                until(first.done)
            return info

        def job_info(self, name: str, **options: Any) -> JobInfo:
            if name == self.lost:
                raise ServerUnreachable("no answer")
            return super().job_info(name, **options)

    with Executor(client=Deaf()) as executor:
        first = executor.submit(wait_for, folder / "go")
        second = executor.submit(add, 1, 1)
        assert isinstance(second.exception(WITHIN_S), ServerUnreachable)
    assert get_job(str(_job_of(second).name)).wait(WITHIN_S).state is State.SUCCEEDED


def test_after_shutdown_nothing_is_accepted_and_what_does_not_run_is_cancelled(
    folder: Path,
) -> None:
    executor = Executor(grace_s=1)
    running = executor.submit(wait_for, folder / "go")
    until(running.running)
    waiting = executor.submit(add, running, 1)
    executor.shutdown(wait=False, cancel_futures=True)
    assert waiting.cancelled()
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(add, 1, 1)
    (folder / "go").write_text("done")
    executor.shutdown()
    assert running.result(0) == "done"


def test_a_server_without_this_call_is_named_before_anything_is_submitted(
    odd_server: object,
) -> None:
    missing = http(
        "404 Not Found", b'{"code": "not_found", "message": "there is nothing at /api/v1/changes"}'
    )
    odd = odd_server(missing)  # type: ignore[operator]
    with (
        pytest.raises(NotSupported, match="can't watch many jobs"),
        Executor(client=Client(odd.url)) as executor,
    ):
        executor.submit(add, 1, 1)
    assert ["changes" in asked.line for asked in odd.requests] == [True]


@pytest.mark.process
def test_futures_outlive_a_killed_server_and_fail_when_none_comes_back(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "own"
    monkeypatch.setenv("CLIENT_LIB_STATE_DIR", str(state))
    future = Executor().submit(wait_for, folder / "go")
    try:
        until(future.running)
        stop_server(state)  # the client starts another one
        (folder / "go").write_text("well")
        assert future.result(WITHIN_S) == "well"
        other = Client(Client().endpoint, (state / "token").read_text().strip(), retry_s=0.5)
        lost = Executor(client=other, grace_s=1).submit(wait_for, folder / "never")
        stop_server(state)
        assert isinstance(lost.exception(WITHIN_S), ServerUnreachable)
    finally:
        (folder / "never").write_text("")
        stop_server(state)


# --- jobs


def test_jobs_as_they_complete_and_all_of_them(folder: Path) -> None:
    jobs = [Job(script=wait_for, args=[folder / str(number)]) for number in range(2)]
    jobs += [Job(script=fail)]
    for job in jobs:
        job.submit()
    completed = as_completed(jobs, WITHIN_S)
    assert next(completed) is jobs[2]
    (folder / "1").write_text("")
    assert next(completed) is jobs[1]
    with pytest.raises(WaitTimeout, match=f"1 jobs are not final yet, among them {jobs[0].name}"):
        list(as_completed(jobs, 0.1))
    with pytest.raises(WaitTimeout):
        wait_all(jobs, timeout_s=0.1)
    (folder / "0").write_text("")
    assert list(completed) == [jobs[0]]
    assert [info.name for info in wait_all(jobs[:2])] == [jobs[0].name, jobs[1].name]
    with pytest.raises(JobFailed, match=str(jobs[2].name)):
        wait_all([jobs[2], jobs[1]])
    assert list(as_completed([])) == []


def test_a_deleted_job_completes_and_its_wait_says_so(folder: Path) -> None:
    jobs = [Job(script=wait_for, args=[folder / str(number)], grace_s=1) for number in range(2)]
    for job in jobs:
        job.submit()
    name = str(jobs[0].name)
    get_job(name).delete(force=True)
    until(lambda: name not in [job.name for job in list_jobs()])
    completed = as_completed(jobs, WITHIN_S)
    assert next(completed) is jobs[0]
    with pytest.raises(NotFound):
        jobs[0].wait()
    (folder / "1").write_text("")
    assert list(completed) == [jobs[1]]
