"""The words of the ML Space platform where they meet ours: types, regions, statuses, dates,
sentences. Pure.

The server's `/public/v2` and the SDK's platform-shaped names both translate by these tables, so
that they agree. Shapes of requests and answers are in `server_stub.http.api.public_v2`. Facts are
from the platform's public documents.
"""

from datetime import datetime, timezone

from client_lib.spec.states import Reason, State, TextEnum, as_sent

DEFAULT_REGION = "DGX2-MT"
REGIONS = ("DGX2-MT", "A100-MT", "SR002-MT", "SR003", "SR004", "SR005", "SR006", "SR008", "SR009")
"""Names that the platform's own clients know. A server takes any."""


class PlatformType(TextEnum):
    """Each type under its own name, as scripts write them: `Job.Type.pytorch2`."""

    binary = "binary"
    binary_exp = "binary_exp"
    cce = "cce"
    horovod = "horovod"
    nogpu = "nogpu"
    pytorch = "pytorch"
    pytorch2 = "pytorch2"
    pytorch_elastic = "pytorch_elastic"
    spark = "spark"
    torchrun = "torchrun"


class Status(TextEnum):
    """Statuses as lists, filters and the SDK write them; `GET /jobs/{name}`
    writes them in lower case.
    """

    COMPLETED = "Completed"
    COMPLETING = "Completing"
    DELETED = "Deleted"
    FAILED = "Failed"
    PENDING = "Pending"
    RUNNING = "Running"
    STOPPED = "Stopped"
    SUCCEEDED = "Succeeded"
    TERMINATED = "Terminated"
    TERMINATING = "Terminating"
    RESTARTING = "Restarting"


_OF_STATE = {
    State.PENDING: Status.PENDING,
    State.RUNNING: Status.RUNNING,
    State.RESTARTING: Status.RESTARTING,
    State.SUCCEEDED: Status.COMPLETED,
    State.FAILED: Status.FAILED,
    # a kill is a logical delete there: the job can still be requested
    State.CANCELLED: Status.DELETED,
}

STATES_OF: dict[Status, frozenset[State]] = {
    Status.COMPLETED: frozenset({State.SUCCEEDED}),
    Status.SUCCEEDED: frozenset({State.SUCCEEDED}),
    Status.FAILED: frozenset({State.FAILED}),
    Status.DELETED: frozenset({State.CANCELLED}),
    Status.STOPPED: frozenset({State.CANCELLED}),
    Status.TERMINATED: frozenset({State.CANCELLED}),
    Status.PENDING: frozenset({State.PENDING}),
    # the platform's clients can't ask for Restarting: who looks for what is alive asks for Pending
    # and Running
    Status.RUNNING: frozenset({State.RUNNING, State.RESTARTING}),
    Status.RESTARTING: frozenset({State.RESTARTING}),
    Status.TERMINATING: frozenset({State.RUNNING}),
    Status.COMPLETING: frozenset(),
}
"""States that a filter by status finds."""


def listed_status(state: State, reason: Reason) -> Status:
    """Status of an item of a list, and of the SDK's `jobs()`."""
    if state is State.RUNNING and reason is Reason.STOPPING:
        return Status.TERMINATING
    return _of_state(state)


def shown_status(state: State) -> Status:
    """Status of one job that is requested by name, and of the SDK's `status()`: one that every
    client knows.

    A job between two attempts is Running: the platform's command line follows logs only while it
    reads exactly that.
    """
    return Status.RUNNING if state is State.RESTARTING else _of_state(state)


def _of_state(state: State) -> Status:
    return _OF_STATE.get(state) or as_sent(Status, state)


def unix(time: datetime | None) -> int:
    """Whole seconds since 1970; 0: not yet."""
    return 0 if time is None else int(time.timestamp())


def iso(time: datetime | None) -> str | None:
    """`2026-11-21T14:54:31Z`; None: not yet."""
    return None if time is None else time.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def duration(started_at: datetime | None, ended_at: datetime | None, now: datetime) -> str:
    """`125s`: whole seconds of running; `0s` before. The platform's command line fails
    on null and on a fraction.
    """
    seconds = 0.0 if started_at is None else ((ended_at or now) - started_at).total_seconds()
    return f"{max(0, int(seconds))}s"


def pod_name(worker: int) -> str:
    """`mpimaster-0` is worker 0, which computes too; the others count from `mpiworker-0`."""
    return "mpimaster-0" if worker == 0 else f"mpiworker-{worker - 1}"


def submitted(name: str) -> str:
    """The sentence that `Job.submit()` returns."""
    return f'Job "{name}" created.'


def deleted(name: str) -> str:
    """The sentence that `Job.kill()` returns."""
    return f'Job "{name}" deleted'


def in_queue(name: str) -> str:
    """The text in place of logs while the job waits; the platform prints the double quotes too."""
    return f'"Job {name} in queue. Try later"'
