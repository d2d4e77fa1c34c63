"""Handles requests with large bodies in turns of the users, and parses and validates these bodies
in a thread: on the event loop a body of 200 000 entries would keep all other requests waiting for
half a second.

While pydantic calls validators in Python, the event loop gets the interpreter every 5 ms. While
`json.loads` parses, the loop waits: 0.1 s for the largest body (benchmarks/hostile_load.py).
"""

import json
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from server_stub.http.api.context import context
from server_stub.http.auth import sender
from server_stub.http.limits import SMALL_BODY_BYTES
from server_stub.turns import finished

_thread = ThreadPoolExecutor(1, "large-body")
"""One thread: several would share the time of one core with the event loop."""

_DROPPED = b"{}"
"""The body that a request keeps in place of one that is validated, to free its memory."""


class BodyRoute(APIRoute):
    """A route of which large bodies are handled in turns. The request of a client that leaves while
    it waits is dropped. One that has its turn goes on, as the thread can't be stopped; its sender
    has no other turn meanwhile."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle

        async def handle_in_turn(request: Request) -> Response:
            received = _Received(request, await _whole(request))
            if len(received.whole) <= SMALL_BODY_BYTES:
                return await handle(received)
            parts = await context(request)
            async with parts.large_requests.of(sender(request.scope)):
                if await request.is_disconnected():
                    raise ClientDisconnect
                order = await finished(_thread.submit(self._validated, received.whole))
                # a handler without the request can't read the body again
                kept = received.whole if self.dependant.request_param_name else _DROPPED
                del received
                return await handle(_Validated(request, kept, order))

        return handle_in_turn

    def _validated(self, body: bytes) -> Any:
        """The model of the body. Raises what FastAPI would raise."""
        assert self.body_field is not None
        try:
            data = json.loads(body)
        except json.JSONDecodeError as error:
            finding = {
                "type": "json_invalid",
                "loc": ("body", error.pos),
                "msg": "JSON decode error",
                "input": {},
                "ctx": {"error": error.msg},
            }
            raise RequestValidationError([finding]) from error
        except (ValueError, RecursionError) as error:
            raise HTTPException(400, "There was an error parsing the body") from error
        order, findings = self.body_field.validate(data, {}, loc=("body",))
        if findings:
            raise RequestValidationError(findings)
        return order


async def _whole(request: Request) -> bytes:
    """The body, of which the request keeps no copy, as `Request.body` does."""
    return b"".join([piece async for piece in request.stream()])


class _Received(Request):
    """A request whose body was read."""

    def __init__(self, request: Request, whole: bytes) -> None:
        super().__init__(request.scope, request.receive)
        self.whole = whole

    async def body(self) -> bytes:
        return self.whole


class _Validated(_Received):
    """A request whose body is validated already: FastAPI takes the model from `json` and finds it
    valid at once."""

    def __init__(self, request: Request, whole: bytes, order: Any) -> None:
        super().__init__(request, whole)
        headers = MutableHeaders(raw=list(request.scope["headers"]))
        headers["content-type"] = "application/json"
        self.scope = {**request.scope, "headers": headers.raw}
        self._order = order

    async def json(self) -> Any:
        return self._order
