"""Messages between the server and the workers of a job, apart from logs and reports; and sessions of users in workers.

The programs in the workers (client_lib.worker) read and write it as plain JSON.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from client_lib.spec.bounds import ARGUMENTS_MAX, Line, up_to, within
from client_lib.spec.job import Strict
from client_lib.spec.wire import Lenient

_ARGV_MAX = 32 * 1024  # of a session: its order is one line of up to 512 KiB (client_lib.worker.control)


class WorkerSays(Lenient):
    """Progress of a worker on another machine. Lenient: a newer worker may send more."""

    state: Literal["preparing", "ready", "started", "ended"]
    signs_of_life: int = 0
    """Changes whenever a rank has written something."""
    stacks: str | None = None
    """Mark of the last order for stacks that it has received; None: its version cannot take them."""
    quiet: dict[int, Annotated[float, Field(ge=0, le=1e9)]] = {}
    """Its ranks that do nothing, and for how many seconds."""
    sessions: bool = False
    """It can take up sessions of users."""


class WorkerOrder(Lenient):
    """The order for a worker."""

    do: Literal["wait", "go", "stop", "exit"]
    grace_s: float | None = None
    """Seconds between SIGTERM and SIGKILL of a `stop`; None: the time in its plan."""
    stacks: str | None = None
    """Mark of an order to send the stacks of its ranks, which does not change what the worker does; None: none."""
    session: str | None = None
    """Mark of a session of a user to take up; None: none."""


class LogLengths(Lenient):
    """The server's part of a worker's log."""

    length: int
    """Offset after the last record: the next one is expected there."""
    durable: int
    """Offset up to which a loss of power takes nothing."""
    next_seq: int = 0
    """Number of the next record."""


class OutputLength(Lenient):
    """The server's part of a file that a worker keeps."""

    length: int
    """Bytes; it is kept when these are all."""


class SessionTerminal(Strict):
    """The terminal of a user."""

    rows: Annotated[int, within(0, 65535)]
    columns: Annotated[int, within(0, 65535)]
    term: Annotated[Line, Field(max_length=100)] = "xterm"
    """Value of TERM."""


class SessionRequest(Strict):
    """A session in a worker of a running job."""

    argv: Annotated[list[str], up_to(ARGUMENTS_MAX)] = []
    """The command and its arguments, up to 32768 characters together; []: a shell."""
    port: Annotated[int, within(1, 65535)] | None = None
    """Connect to this port of the worker, instead of a command."""
    rank: Annotated[int, Field(ge=0)] | None = None
    """The command gets the environment of this rank, on its worker."""
    worker: Annotated[int, Field(ge=0)] | None = None
    """The command gets the environment of this worker, without RANK, LOCAL_RANK and the
    other variables of a rank. Default: worker 0."""
    terminal: SessionTerminal | None = None
    """None: the command gets pipes."""

    @model_validator(mode="after")
    def _bounded(self) -> SessionRequest:
        if self.rank is not None and self.worker is not None:
            raise ValueError("give a rank or a worker, not both")
        if sum(map(len, self.argv)) > _ARGV_MAX:
            raise ValueError(f"the command is longer than {_ARGV_MAX} characters: write it to a script")
        return self
