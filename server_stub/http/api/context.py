"""The dependencies of request handlers: the parts of this server, the user, parameters
that many operations share.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple, cast

from fastapi import Depends, Path, Query
from fastapi.dependencies.models import Dependant
from pydantic import BaseModel, BeforeValidator
from pydantic_core import from_json
from starlette.requests import Request

from client_lib.errors import InvalidRequest
from client_lib.spec import paths
from server_stub.files.outputs import OutputsUpload
from server_stub.files.snapshots import Snapshots
from server_stub.http.auth import Logins, Users
from server_stub.http.limits import SENDERS_BODIES_BYTES, SMALL_BODY_BYTES, Bodies
from server_stub.http.metrics import Traffic
from server_stub.logs.hub import LogHub
from server_stub.service import Service
from server_stub.settings import Settings
from server_stub.turns import Turns
from server_stub.users import User
from server_stub.worker_gateway.attempt import WorkerRegistry


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
    bodies: Bodies
    """Room for the bodies of requests, of both APIs."""
    searches: Turns = field(
        default_factory=lambda: Turns("searches", at_once=3, of_user=1, waiting_of_user=8)
    )
    """Searches in logs: each keeps a core busy for up to 20 s."""
    comparisons: Turns = field(
        default_factory=lambda: Turns("comparisons", at_once=2, of_user=1, waiting_of_user=8)
    )
    """Comparisons of the code of two jobs: each takes up to some seconds."""
    large_requests: Turns = field(
        default_factory=lambda: Turns(
            "large requests",
            at_once=4,
            of_user=1,
            waiting_of_user=SENDERS_BODIES_BYTES // SMALL_BODY_BYTES,
        )
    )
    """Requests with large bodies, from the parsing of the body to the answer. What waits has room
    in `bodies`, which bounds it: all workers of a job may send at once."""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the server begins to stop: long polls answer at once."""


async def context(request: Request) -> Context:
    return cast(Context, request.app.state.context)


async def current_user(request: Request) -> User:
    """The user whose token the request carries; `server_stub.http.auth` has checked it."""
    return cast(User, request.scope["user"])


JOB = f"{paths.JOBS}/{{name}}"
WAIT_MAX_S = 60.0
WAIT_S = WAIT_MAX_S / 2
Parts = Annotated[Context, Depends(context)]
CurrentUser = Annotated[User, Depends(current_user)]
Owner = Annotated[
    str | None,
    Query(
        description="Owner, for admins and where the server shares jobs; in a list `*`: all users; "
        "absent: the user of the token."
    ),
]
Offset = Annotated[
    int, Query(ge=0, le=2**53, description="Bytes sent before; repeated ones are dropped.")
]
Wait = Annotated[
    float,
    Query(
        ge=0, le=WAIT_MAX_S, allow_inf_nan=False, description="Seconds to wait for something new."
    ),
]
Number = Annotated[int, Path(ge=0, lt=10**9)]
"""Number of an attempt, a worker or a rank."""
JsonBody = BeforeValidator(lambda body: from_json(body) if isinstance(body, bytes) else body)
"""Reads the body as JSON whatever its Content-Type is: `curl -d` names the type of forms."""


class Named(NamedTuple):
    """A job or a group, as a path names it and as the operations of the service take it."""

    user: User
    name: str
    owner: str | None


async def named(user: CurrentUser, name: str, owner: Owner = None) -> Named:
    return Named(user, name, owner)


OfPath = Annotated[Named, Depends(named)]


async def refuse_unknown_parameters(request: Request) -> None:
    """Raises InvalidRequest for a query parameter that the operation does not
    declare: a typo would be ignored.
    """
    if not request.scope["query_string"]:
        return
    known = set(_query_parameters(request.scope["route"].dependant))
    for name in request.query_params:
        if name not in known:
            there_are = (
                f"there are: {', '.join(sorted(known))}" if known else "this path takes none"
            )
            raise InvalidRequest(f"unknown parameter {name!r}; {there_are}")


def _query_parameters(dependant: Dependant) -> Iterator[str]:
    for parameter in dependant.query_params:
        kind = parameter.field_info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from (field.alias or name for name, field in kind.model_fields.items())
        else:
            yield parameter.alias
    for inner in dependant.dependencies:
        yield from _query_parameters(inner)
