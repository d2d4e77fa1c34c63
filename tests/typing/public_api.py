"""The public API as a user writes it. Checked by mypy --strict (`make check`), never run."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typing_extensions import assert_type

import client_lib
from client_lib import (
    Client,
    Event,
    Explanation,
    Failure,
    HealthParams,
    Job,
    JobCancelled,
    JobFailed,
    JobInfo,
    JobSpec,
    JobType,
    LogEntry,
    Manifest,
    PriorityClass,
    Reason,
    State,
    WaitTimeout,
    get_group,
    get_job,
    list_jobs,
    resubmit,
)

job = Job(
    "pytorch/pytorch:2.8.0-cuda12.8-cudnn9-runtime",
    Path("train.py"),
    "a100.8gpu",
    2,
    "pytorch2",
    flags={"lr": 0.1, "amp": True, "resume": None},
    env_variables={"SEED": 1, "NAME": "x"},
    priority_class=PriorityClass.HIGH,
    health_params={"log_period": 10, "action": "restart"},
)
Job(
    script="train.py",
    type=JobType.BINARY,
    processes_per_worker="default",
    health_params=HealthParams(log_period=5),
)

assert_type(job.submit(), str)
assert_type(job.job_name, "str | None")
assert_type(job.status(), str)
assert_type(job.kill(), str)
job.logs(
    100, follow=False, since="10m", rank=[0, 1], stream="train.log", timestamps=True, collapse=True
)

assert_type(job.spec, JobSpec)
assert_type(job.info(), JobInfo)
assert_type(job.state, State)
assert_type(job.wait(timeout=60), JobInfo)
assert_type(job.log_lines(), Iterator[str])
assert_type(job.log_entries(follow=False), Iterator[LogEntry])
assert_type(job.cancel(), JobInfo)
assert_type(job.delete(force=True), str)
assert_type(job.download("out", pattern="*.pt"), list[Path])
assert_type(resubmit(job, n_workers=4), Job)
assert_type(job.events(), list[Event])
assert_type(job.explanation(), Explanation)
assert_type(job.render(), Manifest)
assert_type(job.info().reason, Reason)
assert_type(job.info().failure, Failure | None)

assert_type(get_job("train-x7k2m"), Job)
assert_type(get_group("lr-scan")[0], Job)
assert_type(get_group("lr-scan").best("loss"), Job)
for each in list_jobs(state=State.RUNNING, label={"team": "vision"}, limit=10):
    assert_type(each, Job)

with Client("https://jobs.example", token="t") as client:
    assert_type(client.get_job("train-x7k2m"), Job)

try:
    job.wait()
except JobFailed as failed:
    assert_type(failed.hint, "str | None")
except (JobCancelled, WaitTimeout) as error:
    assert_type(error.hint, "str | None")
except client_lib.ClientLibError as error:
    assert_type(error.message, str)


def add(x: int, y: int) -> float:
    return x + y


assert_type(Job.from_function(add, 1, y=2).result(), float)
assert_type(client_lib.remote(n_workers=2)(add).submit(1, 2).results(), list[float])
assert_type(Job(script="train.py").result(), Any)
with client_lib.Executor(n_workers=2) as executor:
    first = executor.submit(add, 1, y=2)
    assert_type(executor.submit(add, first, 1).result(), float)
    assert_type(executor.map(add, [1], [2], chunksize=2), Iterator[float])
assert_type(client_lib.wait_all([job], timeout_s=1), list[JobInfo])
assert_type(client_lib.as_completed([job]), Iterator[Job])
