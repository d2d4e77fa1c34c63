"""What a request handler works with: the parts of this server, and who asks.

Every path below `/api/v1` has passed `server_stub.auth`, so `user(request)` is always somebody; below those of workers
there is an attempt instead (`api.workers`).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import cast

from starlette.requests import Request

from server_stub.logs import LogHub
from server_stub.outputs_intake import OutputsIntake
from server_stub.service import Service
from server_stub.settings import Settings
from server_stub.snapshots import Snapshots
from server_stub.traffic import Traffic
from server_stub.users import User
from server_stub.workers import WorkerDesk


@dataclass(frozen=True)
class Context:
    """The parts of one server; made by `server_stub.serve`."""

    settings: Settings
    service: Service
    snapshots: Snapshots
    hub: LogHub
    traffic: Traffic
    workers: WorkerDesk
    """Where workers on other machines are heard; nobody is, with a runtime that has none."""
    outputs: OutputsIntake
    """Where they send what they keep."""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the server begins to stop: long polls answer at once."""


def context(request: Request) -> Context:
    return cast(Context, request.app.state.context)


def user(request: Request) -> User:
    """Who asks."""
    return cast(User, request.scope["user"])


def header(request: Request, name: bytes) -> str | None:
    """The first header line of that name, which is in small letters as ASGI has them."""
    return next((value.decode("latin-1") for known, value in request.scope["headers"] if known == name), None)


def owner(request: Request) -> str | None:
    """`?owner=`: whose job; None: the asking user's own."""
    return request.query_params.get("owner")
