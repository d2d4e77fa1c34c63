"""The cluster `client_lib` of submitit: `AutoExecutor(folder, cluster="client_lib")` runs functions
as jobs.

submitit finds both classes by the entry points of its group. Results and logs are the server's: the
workers need neither the folder nor submitit, except for `JobEnvironment` and checkpoints.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import ceil
from typing import Any, ClassVar

from submitit.core import core, job_environment, utils

from client_lib.client import get_job
from client_lib.errors import InvalidRequest, JobEnded, NoResult, RemoteError
from client_lib.futures import Executor
from client_lib.job import Job, submitted
from client_lib.spec.job import JobSpec
from client_lib.spec.states import State

_NAME = "client_lib"
_GENERIC = {
    "nodes": "n_workers",
    "tasks_per_node": "processes_per_worker",
    "timeout_min": "stop_timer",
    "name": "job_desc",
}
_MACHINE = ("gpus_per_node", "cpus_per_task", "mem_gb")
_STATES = {State.SUCCEEDED: "COMPLETED", State.RESTARTING: "REQUEUED"}


class ClientLibJob(core.Job):
    """A job, found by its name: also when it was pickled and is read by another process."""

    @property
    def job(self) -> Job[Any]:
        """The job as client_lib has it."""
        return get_job(self.job_id)

    def _register_in_watcher(self) -> None:
        """Do nothing: the server knows the state."""

    @property
    def state(self) -> str:
        state = self.job.state
        return _STATES.get(state, str(state))

    def get_info(self, mode: str = "force") -> dict[str, str]:  # noqa: ARG002  # the signature of the base class
        return {"JobID": self.job_id, "State": self.state}

    def done(self, force_check: bool = False) -> bool:  # noqa: ARG002
        return self.job.state.final

    def wait(self) -> None:
        with suppress(JobEnded):
            self.job.wait()

    def cancel(self, check: bool = True) -> None:  # noqa: ARG002
        self.job.cancel()

    def __del__(self) -> None:
        if getattr(self, "_cancel_at_deletion", False):
            self.cancel()

    def _get_outcome_and_result(self) -> tuple[str, Any]:
        try:
            return "success", self.job.result(self.task_id)
        except RemoteError as error:
            return "error", str(error)
        except (JobEnded, NoResult) as error:
            raise utils.UncompletedJobError(str(error)) from error
        except Exception as error:  # noqa: BLE001  # whatever the function raised
            return "error", str(error.__cause__)

    def exception(self) -> Exception | None:
        """Wait, and return the error of the job without raising it."""
        if self._sub_jobs:
            errors: list[Exception | None] = [job.exception() for job in self._sub_jobs]
            return next(filter(None, errors), None)
        failed: Exception | None = None
        try:
            outcome, trace = self._get_outcome_and_result()
            failed = utils.FailedJobError(trace) if outcome == "error" else None
        except utils.UncompletedJobError as error:
            failed = error
        return failed

    def _get_logs_string(self, name: str) -> str:
        return "".join(
            f"{line}\n" for line in self.job.log_lines(follow=False, rank=self.task_id, stream=name)
        )


class ClientLibExecutor(core.Executor):
    """submitit's executor. `update_parameters` takes its generic parameters, and without
    AutoExecutor (which refuses a prefix with an underscore) all arguments of Job."""

    job_class = ClientLibJob

    @classmethod
    def name(cls) -> str:
        return _NAME

    @classmethod
    def affinity(cls) -> int:
        """Return 0: it is there, and is taken only if it is asked for."""
        return 0

    @classmethod
    def _valid_parameters(cls) -> set[str]:
        return set(JobSpec.model_fields)

    def _convert_parameters(self, params: dict[str, Any]) -> dict[str, Any]:
        machine = {name: params.pop(name) for name in _MACHINE if name in params}
        params.pop("stderr_to_stdout", None)  # both are read with the time of each line
        converted = {_GENERIC[name]: value for name, value in params.items()}
        if gpus := machine.get("gpus_per_node"):
            converted["instance_type"] = f"gpu.{gpus}gpu"
        elif machine:
            cores = machine.get("cpus_per_task", 1) * params.get("tasks_per_node", 1)
            converted["instance_type"] = f"cpu.{cores}C.{ceil(machine.get('mem_gb', 1))}G"
        return converted

    def _internal_update_parameters(self, **kwargs: Any) -> None:
        if kwargs.get("processes_per_worker", 1) in (None, "default"):
            raise InvalidRequest(
                "submitit counts the tasks of a job: processes_per_worker must be a number"
            )
        Executor(**self.parameters | kwargs)  # raises for a wrong one
        super()._internal_update_parameters(**kwargs)

    def _internal_process_submissions(
        self, delayed_submissions: Sequence[Any]
    ) -> list[ClientLibJob]:
        options = {"processes_per_worker": 1} | self.parameters
        own = {"SUBMITIT_EXECUTOR": _NAME, "SUBMITIT_FOLDER": str(self.folder)}
        options["env_variables"] = own | dict(options.get("env_variables") or {})
        found = []
        for delayed in delayed_submissions:
            if hasattr(delayed.function, "checkpoint") or hasattr(
                delayed.function, "__submitit_checkpoint__"
            ):
                job: Job[Any] = Job(script=_resumable(delayed), **options)
            else:
                job = Job(
                    script=delayed.function, args=delayed.args, kwargs=delayed.kwargs, **options
                )
            submitted(job)
            assert job.name
            tasks = job.spec.n_workers * int(job.spec.processes_per_worker)
            found.append(ClientLibJob(self.folder, job.name, range(tasks)))
            found[-1].paths.folder.mkdir(parents=True, exist_ok=True)
            delayed.dump(found[-1].paths.submitted_pickle)  # for `job.submission()`
        return found


class ClientLibJobEnvironment(job_environment.JobEnvironment):
    """The environment of a rank, in the words of submitit."""

    _env: ClassVar[dict[str, str]] = {
        "job_id": "CLIENT_LIB_JOB_NAME",
        "num_tasks": "WORLD_SIZE",
        "node": "GROUP_RANK",
        "global_rank": "RANK",
        "local_rank": "LOCAL_RANK",
    }

    @classmethod
    def name(cls) -> str:
        return _NAME

    @property
    def num_nodes(self) -> int:
        return int(self.num_tasks) // int(os.environ["LOCAL_WORLD_SIZE"])


def _resumable(delayed: Any) -> Callable[[], Any]:
    """The call of a function with checkpoints: a stopped rank 0 leaves one, from which
    the next attempt goes on.
    """

    def run() -> Any:  # travels by value
        import signal
        import sys
        from pathlib import Path

        from submitit.core.utils import DelayedSubmission

        kept = Path(os.environ["CLIENT_LIB_CHECKPOINT_DIR"], "submitit.pkl")
        call = DelayedSubmission.load(kept) if kept.exists() else delayed

        def stop(*_: object) -> None:
            if os.environ["RANK"] == "0" and (rest := call._checkpoint_function()):
                rest.dump(kept.with_suffix(".new"))
                kept.with_suffix(".new").replace(kept)
            sys.exit(143)

        signal.signal(signal.SIGTERM, stop)
        return call.result()

    run.__name__ = getattr(delayed.function, "__name__", type(delayed.function).__name__)
    return run
