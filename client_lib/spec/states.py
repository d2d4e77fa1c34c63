"""The states of a job, the reasons beside them, and the one table of legal transitions.

Pure and standard library only. A state says where a job is; a reason says why it is there (closed list); the message
beside them is a sentence for a human. The store refuses what `check_transition` refuses.
"""

from __future__ import annotations

from enum import Enum


class State(str, Enum):
    """Where a job is. The last three are final: nothing leaves them."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    RESTARTING = "RESTARTING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    __str__ = str.__str__

    @property
    def final(self) -> bool:
        return self in FINAL


FINAL = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED})


class Reason(str, Enum):
    """Why a job is in its state."""

    # while it waits
    QUEUED = "Queued"  # accepted; waits for its turn or for capacity
    UNSCHEDULABLE = "Unschedulable"  # no node can take a worker as things are
    IMAGE_PULL = "ImagePull"  # an image is being pulled, or can't be
    CODE_FETCH = "CodeFetch"  # the snapshot is being fetched, or can't be
    STARTING = "Starting"  # workers are being started
    # while it runs
    RUNNING = "Running"
    STOPPING = "Stopping"  # asked to stop; the grace period runs
    # why an attempt or the job ended
    COMPLETED = "Completed"  # every rank ended with exit code 0
    PREEMPTED = "Preempted"
    NODE_LOST = "NodeLost"  # the machine went away or was rebooted
    OUT_OF_MEMORY = "OutOfMemory"
    EXIT_CODE = "ExitCode"  # a rank ended with a non-zero exit code
    SIGNAL = "Signal"  # a rank was killed by a signal
    LAUNCHER_LOST = "LauncherLost"  # a worker's launcher died without a report
    START_FAILED = "StartFailed"  # a process could not be started at all
    TIMEOUT = "Timeout"  # stop_timer
    HUNG_SILENT = "HungSilent"  # health_params: no line for too long
    CANCELLED = "Cancelled"
    DELETED_EXTERNALLY = "DeletedExternally"

    __str__ = str.__str__


TRANSITIONS: dict[State, frozenset[State]] = {
    # a pending job may change its reason, start, fail to start, start over, or be cancelled; it can't succeed unseen:
    # an attempt that ends between two looks of the observer passes through RUNNING in the same transaction
    State.PENDING: frozenset({State.PENDING, State.RUNNING, State.RESTARTING, State.FAILED, State.CANCELLED}),
    State.RUNNING: frozenset({State.RUNNING, State.RESTARTING, State.SUCCEEDED, State.FAILED, State.CANCELLED}),
    # RESTARTING is the wait for the next attempt: of the whole gang
    State.RESTARTING: frozenset({State.RESTARTING, State.RUNNING, State.FAILED, State.CANCELLED}),
    State.SUCCEEDED: frozenset(),
    State.FAILED: frozenset(),
    State.CANCELLED: frozenset(),
}


class IllegalTransition(AssertionError):
    """A bug of the server: the table does not allow this step, so it is not stored."""


def check_transition(before: State, after: State) -> None:
    """Return if `before` may become `after`; raise IllegalTransition else."""
    if after not in TRANSITIONS[before]:
        raise IllegalTransition(f"{before} can't become {after}")
