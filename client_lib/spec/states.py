"""The states of a job, the reasons beside them, and the one table of legal transitions.

Pure and standard library only. The store refuses the transitions that `check_transition` refuses.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from difflib import get_close_matches
from enum import Enum
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:  # lists load no pydantic
    pass

E = TypeVar("E", bound=Enum)


RENAMED: dict[tuple[str, str], str] = {}
"""(name of the enum, word of an earlier version) -> the word of this version. Rows of the database,
and servers of earlier versions, still have the former words."""


class TextEnum(str, Enum):
    """An enum whose members are printed as their values, like StrEnum of Python 3.11. A word of an
    earlier version gives the member that has its meaning today (RENAMED)."""

    __str__ = str.__str__

    @classmethod
    def _missing_(cls, value: object) -> TextEnum | None:
        word = RENAMED.get((cls.__name__, str(value)))
        return cls(word) if word is not None else None


class State(TextEnum):
    """The place of a job in its life. The last three are final: a job never leaves them."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    RESTARTING = "RESTARTING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def final(self) -> bool:
        return self in FINAL


FINAL = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED})


class Reason(TextEnum):
    """The explanation of a job's state."""

    # while it waits
    QUEUED = "Queued"  # accepted; waits for its turn or for capacity
    UNSCHEDULABLE = "Unschedulable"  # no node can take a worker as things are
    IMAGE_PULL = "ImagePull"  # an image is being pulled, or can't be
    CODE_FETCH = "CodeFetch"  # the snapshot is being fetched, or can't be
    STARTING = "Starting"  # workers are being started
    # while it runs
    RUNNING = "Running"
    # ranks wait in a collective for one that does nothing; also why an attempt was stopped
    HUNG = "Hung"
    STOPPING = "Stopping"  # asked to stop; the grace period runs
    # why an attempt or the job ended
    COMPLETED = "Completed"  # every rank ended with exit code 0
    PREEMPTED = "Preempted"  # evicted, or replaced by another job
    NODE_LOST = "NodeLost"  # the machine went away, was rebooted or never reached the server
    OUT_OF_MEMORY = "OutOfMemory"
    EXIT_CODE = "ExitCode"  # a rank ended with a non-zero exit code
    SIGNAL = "Signal"  # a rank was killed by a signal
    LAUNCHER_LOST = "LauncherLost"  # a worker's launcher died without a report
    START_FAILED = "StartFailed"  # a process could not be started at all
    SETUP_FAILED = "SetupFailed"  # the job's command before its ranks failed
    PREFLIGHT_FAILED = "PreflightFailed"  # the check of the machines before the script failed
    # a disk had no room for the code, its packages or the files of a worker
    STORAGE_FULL = "StorageFull"
    # an error of the server while it handled the job, or its stored data can't be read
    SERVER_ERROR = "ServerError"
    TIMEOUT = "Timeout"  # stop_timer
    HUNG_SILENT = "HungSilent"  # health_params: no line for too long
    ALARM = "Alarm"  # a rule of `alarm` has become true
    CANCELLED = "Cancelled"
    DELETED_EXTERNALLY = "DeletedExternally"
    # a job in `after` did not end as required, so that the waiting job never started
    DEPENDENCY_FAILED = "DependencyFailed"


FAILURES = (
    *(
        Reason.EXIT_CODE,
        Reason.SIGNAL,
        Reason.OUT_OF_MEMORY,
        Reason.NODE_LOST,
        Reason.PREEMPTED,
        Reason.UNSCHEDULABLE,
    ),
    *(
        Reason.HUNG,
        Reason.HUNG_SILENT,
        Reason.LAUNCHER_LOST,
        Reason.START_FAILED,
        Reason.SETUP_FAILED,
    ),
    *(Reason.PREFLIGHT_FAILED, Reason.STORAGE_FULL, Reason.DELETED_EXTERNALLY),
)
"""Reasons for the end of an attempt that `retry_on` can name; Cancelled and
Timeout are never retried.
"""
_EXIT = re.compile(r"exit:([1-9]\d{0,2})")


def check_failure(word: str) -> None:
    """Raises ValueError unless `word` is one of FAILURES, or `exit:N` for
    an exit code from 1 to 255.
    """
    code = _EXIT.fullmatch(word)
    if word in FAILURES or (code and int(code[1]) <= 255):
        return
    words = [*map(str, FAILURES), "exit:N"]
    near = get_close_matches(word, words, n=1)
    way_out = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(words)}"
    raise ValueError(
        f"{word!r} is no failure of an attempt; {way_out}"
        + " (N: 1 to 255)" * ("exit:N" in way_out)
    )


def as_sent(kind: type[E], value: str) -> E:
    """The member with this value; for a value that only a newer server knows, a stand-in that
    prints as it was sent. A stand-in equals its text, is no member, and is not final."""
    try:
        return kind(value)
    except ValueError:
        stand_in = str.__new__(kind, value)  # type: ignore[type-var]
        stand_in._name_ = stand_in._value_ = value
        return stand_in


TRANSITIONS: dict[State, frozenset[State]] = {
    # a pending job may change its reason, start, fail to start, start over or be cancelled; it
    # never succeeds directly: an attempt that ends between two observations passes through RUNNING
    # in the same transaction
    State.PENDING: frozenset(
        {State.PENDING, State.RUNNING, State.RESTARTING, State.FAILED, State.CANCELLED}
    ),
    State.RUNNING: frozenset(
        {State.RUNNING, State.RESTARTING, State.SUCCEEDED, State.FAILED, State.CANCELLED}
    ),
    # RESTARTING is the wait for the next attempt: of the whole gang
    State.RESTARTING: frozenset({State.RESTARTING, State.RUNNING, State.FAILED, State.CANCELLED}),
    State.SUCCEEDED: frozenset(),
    State.FAILED: frozenset(),
    State.CANCELLED: frozenset(),
}


def state_of_group(members: Collection[State]) -> State:
    """The state of a group whose members are in these states."""
    if members and all(state in (State.PENDING, State.RESTARTING) for state in members):
        return State.PENDING
    if not all(state.final for state in members):
        return State.RUNNING
    return next(
        (state for state in (State.FAILED, State.CANCELLED) if state in members), State.SUCCEEDED
    )


class IllegalTransition(AssertionError):
    """A bug of the server: the table does not allow this transition, so it is not stored."""


def check_transition(before: State, after: State) -> None:
    """Raises IllegalTransition unless `before` may become `after`."""
    if after not in TRANSITIONS[before]:
        raise IllegalTransition(f"{before} can't become {after}")
