"""Scripts as submitit's documentation shows them, on the cluster `client_lib`."""

import asyncio
import os
import pickle
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import submitit

from client_lib import InvalidRequest
from client_lib.plugins.submitit import ClientLibExecutor


def add(one: int, two: int) -> int:
    print("adds", flush=True)
    return one + two


def divide(one: int, two: int) -> float:
    return one / two


@pytest.fixture
def executor(folder: Path) -> submitit.AutoExecutor:
    executor = submitit.AutoExecutor(folder="jobs", cluster="client_lib")
    executor.update_parameters(timeout_min=2, name="sums")
    return executor


def test_a_function_its_result_log_submission_and_pickle(executor: submitit.AutoExecutor) -> None:
    job = executor.submit(add, 5, 7)
    assert job.result() == 12
    assert (job.done(), job.state, job.exception(), job.stdout()) == (
        True,
        "COMPLETED",
        None,
        "adds\n",
    )
    assert job.submission().args == (5, 7)
    again = pickle.loads(pickle.dumps(job))
    assert again.results() == [12]
    assert (again.job.spec.job_desc, again.job.spec.stop_timer) == ("sums", 2)
    assert asyncio.run(job.awaitable().result()) == 12


def test_an_array_and_a_batch(executor: submitit.AutoExecutor) -> None:
    jobs = executor.map_array(add, [1, 2], [10, 20])
    with executor.batch():
        jobs += [executor.submit(add, number, 100) for number in range(2)]
    assert [job.result() for job in jobs] == [11, 22, 100, 101]


def test_tasks_know_their_environment(executor: submitit.AutoExecutor) -> None:
    def where() -> tuple[int, ...]:
        env = submitit.JobEnvironment()
        return env.global_rank, env.num_tasks, env.num_nodes, env.node, env.local_rank

    executor.update_parameters(tasks_per_node=2, nodes=2, cpus_per_task=1)
    job = executor.submit(where)
    assert job.results() == [(0, 4, 2, 0, 0), (1, 4, 2, 0, 1), (2, 4, 2, 1, 0), (3, 4, 2, 1, 1)]
    assert job.task(3).result() == (3, 4, 2, 1, 1)


def test_an_error_of_the_function_and_one_of_the_job(executor: submitit.AutoExecutor) -> None:
    failed = executor.submit(divide, 1, 0)
    assert "ZeroDivisionError: division by zero" in str(failed.exception())
    with pytest.raises(submitit.core.utils.FailedJobError, match="in divide"):
        failed.result()
    cancelled = executor.submit(time.sleep, 100)
    cancelled.cancel()
    assert isinstance(cancelled.exception(), submitit.core.utils.UncompletedJobError)
    assert cancelled.state == "CANCELLED"


def test_all_arguments_of_job_without_auto_executor_and_clear_refusals(folder: Path) -> None:
    executor = ClientLibExecutor("jobs")
    executor.update_parameters(labels={"team": "a"}, env_variables={"LR": "0.1"})
    job: Any = executor.submit(os.getenv, "LR")
    assert job.result() == "0.1"
    assert job.job.spec.labels == {"team": "a"}
    with pytest.raises(InvalidRequest, match="n_workers"):
        executor.update_parameters(n_workers=0)
    with pytest.raises(InvalidRequest, match="processes_per_worker must be a number"):
        executor.update_parameters(processes_per_worker="default")


class Counter(submitit.helpers.Checkpointable):  # type: ignore[misc,unused-ignore]
    """Counts over attempts: rank 1 fails in the first, after rank 0 has counted."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count, self.attempts = folder, 0, 1

    def __call__(self) -> tuple[int, int]:
        if self.attempts == 1:
            self.count = 3
            (self.folder / os.environ["RANK"]).touch()
            while os.environ["RANK"] == "0" or not (self.folder / "0").exists():
                time.sleep(0.01)
            sys.exit(1)
        return self.count, self.attempts

    def checkpoint(self) -> submitit.helpers.DelayedSubmission:
        self.attempts += 1
        return submitit.helpers.DelayedSubmission(self)


@pytest.mark.process
def test_a_stopped_job_goes_on_from_its_checkpoint(folder: Path) -> None:
    executor = ClientLibExecutor("jobs")
    executor.update_parameters(processes_per_worker=2, max_retry=1)
    assert executor.submit(Counter(folder)).results() == [(3, 2), (3, 2)]
