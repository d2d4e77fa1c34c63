"""Arguments and results of the service: frozen values, so that the HTTP layer imports neither store nor runtimes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from client_lib.spec.states import State

ALL_OWNERS = "*"
"""The owner in the filters of a list that means the jobs of all users."""


@dataclass(frozen=True)
class User:
    """The user that the token of a request belongs to; `server_stub.http.auth` finds it."""

    name: str
    admin: bool = False
    """Sees and acts on the jobs of all."""
    account: str = ""
    """The account of the machine under which local jobs of the user run, if it has another name than the user."""


class JobText(NamedTuple):
    """One job as JSON."""

    json: bytes
    """A JobInfo."""
    version: int
    state: State


@dataclass(frozen=True)
class JobOutputs:
    """The place of a job's outputs; `server_stub.files.outputs` reads them."""

    job_dir: Path
    in_place: str | None
    """The folder that it runs in, where that is the submitter's own."""
    final: bool
