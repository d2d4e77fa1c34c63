"""What the service hands out: small frozen values, so that the HTTP layer needs neither the store nor the runtimes."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from client_lib.spec.states import Reason, State


class JobText(NamedTuple):
    """One job, ready to send."""

    json: bytes
    """A JobInfo."""
    version: int
    state: State


@dataclass(frozen=True)
class JobFilters:
    """What a list is narrowed to; None or {}: not narrowed by that."""

    state: State | None = None
    labels: dict[str, str] = field(default_factory=dict)
    """All of them must match."""
    name_prefix: str | None = None
    owner: str | None = None
    """None: the asking user; `*` (users.ALL_OWNERS): everybody, for those who may see them."""


@dataclass(frozen=True)
class JobSearch:
    """What the lists of `/public/v2` are narrowed to and which page of them; None: not narrowed by that."""

    limit: int
    offset: int = 0
    owners: tuple[str, ...] | None = None
    """None: the asking user. Those that this user may not see are left out."""
    states: frozenset[State] | None = None
    since: datetime | None = None
    """Accepted then or later."""
    until: datetime | None = None
    """Accepted then or before."""
    fields: tuple[tuple[str, str, bool], ...] = ()
    """(field of the spec, its value, whether a job that sets none counts too)."""


@dataclass(frozen=True)
class JobOutputs:
    """What is needed to serve the outputs of a job; see `server_stub.outputs` for how they lie."""

    job_dir: Path
    in_place: str | None
    """The folder that it runs in, where that is the submitter's own."""
    final: bool


@dataclass(frozen=True)
class JobLogs:
    """What is needed to serve the logs of a job; see `server_stub.runtimes.log_dir` for where they lie."""

    job_id: str
    name: str
    job_dir: Path
    n_workers: int
    attempt: int
    """The newest; its directories may not exist yet."""
    version: int
    state: State
    reason: Reason
    message: str
