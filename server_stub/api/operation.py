"""How an operation of `/api/v1` is declared: its path, what it answers, what it reads, for the router and for OpenAPI.

Handlers take the raw request and give a raw response: FastAPI's own parsing and serializing of bodies would cost more
than the whole work of a submit (a page of 100 jobs: 4 ms in jsonable_encoder, 4 µs as joined texts). So what it would
have read from signatures is written here, once, and only looked at when the document is made.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Mapping
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from client_lib.errors import InvalidRequest

Handler = Callable[[Request], Coroutine[Any, Any, Response]]
Query = Mapping[str, str]
"""Name of a query parameter -> what it means, for the document."""

OWNER = {"owner": "Whose job, for admins and where the server shares jobs; absent: one's own."}


class _Request(Request):
    """Starlette's, with a shorter way to a body that came in one piece, as those of submits do."""

    async def body(self) -> bytes:
        """Raises ClientDisconnect."""
        parts, more = [], True
        while more:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
        return b"".join(parts)


class RawRoute(APIRoute):
    """A route whose handler is called with the request and nothing else: none of FastAPI's exit stacks around it, which
    hold what dependencies opened."""

    def __init__(self, path: str, endpoint: Handler, **options: Any) -> None:
        super().__init__(path, endpoint, **options)

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            response = await endpoint(_Request(scope, receive, send))
            await response(scope, receive, send)

        self.app = answer


def new_router() -> APIRouter:
    return APIRouter(route_class=RawRoute)


def operation(
    router: APIRouter,
    method: str,
    path: str,
    *,
    answer: type[BaseModel] | tuple[str, ...] | None,
    status: int = 200,
    body: type[BaseModel] | str | None = None,
    query: Query | None = None,
    headers: Query | None = None,
) -> Callable[[Handler], Handler]:
    """Register the decorated handler; its docstring is the description.

    `answer` and `body`: a model of the wire, or media types of something that is no JSON; None: nothing.
    """
    document: dict[str, Any] = {
        "parameters": _parameters(path, query or {}, headers or {}),
        "responses": {str(status): _content(answer) | {"description": "Done."}, "default": ERROR},
    }
    if status == HTTPStatus.CREATED:  # sent again it is harmless, by its key or its digest
        document["responses"]["200"] = _content(answer) | {"description": "It was there already."}
    if body is not None:
        document["requestBody"] = _content(body if not isinstance(body, str) else (body,)) | {"required": True}

    def register(handler: Handler) -> Handler:
        router.add_api_route(
            path,
            handler,
            methods=[method],
            status_code=status,
            response_class=Response,
            response_model=None,
            operation_id=getattr(handler, "__name__", None),
            openapi_extra=document,
        )
        return handler

    return register


def check_query(request: Request, *allowed: Mapping[str, str]) -> None:
    """Raises InvalidRequest for a query parameter that the operation does not know: a typo would be ignored else."""
    if not request.scope["query_string"]:
        return
    known = {name for names in allowed for name in names}
    for name in request.query_params:
        if name not in known:
            there_are = f"there are: {', '.join(sorted(known))}" if known else "this path takes none"
            raise InvalidRequest(f"unknown parameter {name!r}; {there_are}")


def number(request: Request, name: str, default: float, *, low: float, high: float) -> float:
    """A numeric query parameter, bounded. Raises InvalidRequest with the bounds."""
    text = request.query_params.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not low <= value <= high:
        raise InvalidRequest(f"{name}={text!r}: must be a number from {low:g} to {high:g}")
    return value


def _parameters(path: str, query: Query, headers: Query) -> list[dict[str, Any]]:
    named = [
        *((name, "path", "", True) for name in re.findall(r"{(\w+)(?::path)?}", path)),
        *((name, "query", text, False) for name, text in query.items()),
        *((name, "header", text, False) for name, text in headers.items()),
    ]
    return [
        {"name": name, "in": place, "required": required, "schema": {"type": "string"}}
        | ({"description": text} if text else {})
        for name, place, text, required in named
    ]


def reference(model: type[BaseModel]) -> dict[str, str]:
    """Where `server_stub.openapi` puts the schema of a model."""
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def _content(what: type[BaseModel] | tuple[str, ...] | None) -> dict[str, Any]:
    if what is None:
        return {}
    if isinstance(what, tuple):
        return {"content": {media_type: {"schema": {"type": "string"}} for media_type in what}}
    return {"content": {"application/json": {"schema": reference(what)}}}


ERROR = {
    "description": "Any error: the class of `code` is raised by the client.",
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorBody"}}},
}
