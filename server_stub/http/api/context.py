"""The dependencies of request handlers: the parts of this server, the user, parameters that many operations share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, cast

from fastapi import Depends, Query
from fastapi.dependencies.models import Dependant
from pydantic import BeforeValidator
from pydantic_core import from_json
from starlette.requests import Request

from client_lib.errors import InvalidRequest
from client_lib.spec import paths
from server_stub.files.outputs import OutputsUpload
from server_stub.files.snapshots import Snapshots
from server_stub.http.auth import Logins, Users
from server_stub.http.limits import Bodies
from server_stub.http.metrics import Traffic
from server_stub.logs import LogHub
from server_stub.service import Service
from server_stub.service.lookup import User
from server_stub.settings import Settings
from server_stub.worker_gateway import WorkerRegistry


@dataclass(frozen=True)
class Context:
    """The parts of one server; made by `server_stub.serve`."""

    settings: Settings
    service: Service
    snapshots: Snapshots
    hub: LogHub
    traffic: Traffic
    workers: WorkerRegistry
    """Attempts whose workers run on other machines; empty with a runtime that has none."""
    outputs: OutputsUpload
    """Files that these workers upload."""
    users: Users
    """The users whose requests are accepted."""
    logins: Logins
    """The logins of their browsers."""
    bodies: Bodies = field(default_factory=Bodies)
    """Room for the bodies of requests, of both APIs."""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the server begins to stop: long polls answer at once."""


async def context(request: Request) -> Context:
    return cast(Context, request.app.state.context)


async def current_user(request: Request) -> User:
    """The user whose token the request carries; `server_stub.http.auth` has checked it."""
    return cast(User, request.scope["user"])


JOB = f"{paths.JOBS}/{{name}}"
Parts = Annotated[Context, Depends(context)]
CurrentUser = Annotated[User, Depends(current_user)]
Owner = Annotated[
    str | None,
    Query(description="Owner of the job, for admins and where the server shares jobs; absent: the user of the token."),
]
Offset = Annotated[int, Query(ge=0, le=2**53, description="Bytes sent before; repeated ones are dropped.")]


JsonBody = BeforeValidator(lambda body: from_json(body) if isinstance(body, bytes) else body)
"""Reads the body as JSON whatever its Content-Type is: `curl -d` names the one of forms."""


async def refuse_unknown_parameters(request: Request) -> None:
    """Raises InvalidRequest for a query parameter that the operation does not declare: a typo would be ignored."""
    if not request.scope["query_string"]:
        return
    known = set(_query_parameters(request.scope["route"].dependant))
    for name in request.query_params:
        if name not in known:
            there_are = f"there are: {', '.join(sorted(known))}" if known else "this path takes none"
            raise InvalidRequest(f"unknown parameter {name!r}; {there_are}")


def _query_parameters(dependant: Dependant) -> Iterator[str]:
    yield from (parameter.alias for parameter in dependant.query_params)
    for inner in dependant.dependencies:
        yield from _query_parameters(inner)
