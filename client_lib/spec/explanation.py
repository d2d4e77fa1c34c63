"""What `explain` says of a job, as data: for programs that watch jobs. `client_lib.explanation` makes it.

`docs/explanation.schema.json` is its schema. Fields may be added; those that are here keep their names, types and
meanings.
"""

from __future__ import annotations

from datetime import datetime

from client_lib.spec.states import Reason, State
from client_lib.spec.wire import Event, Failure, Lenient, WorkerInfo


class Explanation(Lenient):
    """Why a job waits, runs or ended; times are aware UTC."""

    job: str
    """Its name."""
    state: State
    reason: Reason
    summary: str
    """All in one line for people, as the text of `explain` begins."""
    message: str
    """What the runtime says about the state: a sentence, or nothing."""
    since: datetime
    """When the job came into this state for this reason."""
    attempt: int
    workers: list[WorkerInfo]
    """Only those that have something of their own to say."""
    failure: Failure | None
    """Of a failed job: the first failing rank."""
    events: list[Event]
    """All of them, oldest first."""
    next: list[str]
    """What to do: at least one step, the likeliest first."""
