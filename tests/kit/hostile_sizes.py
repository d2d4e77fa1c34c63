"""The operations of a server and requests for them with hostile sizes: numbers of keys and entries,
depth, lengths, expressions. The operations are taken from the routes, so that a new one is included
by itself."""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from fastapi.routing import RouteContext, iter_route_contexts
from pydantic import BaseModel

from client_lib.launcher_protocol.json_entries import ENTRIES_MAX
from client_lib.launcher_protocol.plan import PROTOCOL
from client_lib.spec import paths
from client_lib.spec.job import JobSpec
from client_lib.spec.request import GroupRequest, SubmitRequest
from client_lib.spec.states import Reason
from server_stub.app import rest_api
from server_stub.http.api.public_v2 import routes as platform_api
from server_stub.http.api.public_v2.models import RunJobRequest
from server_stub.http.api.workers import WorkerStacks
from server_stub.http.limits import HEAD_MAX, MAX_BODY_BYTES
from server_stub.worker_gateway.report import WorkerReport

PAGES = [
    ("GET", "/"),
    ("GET", "/jobs/{name}"),
    ("GET", "/jobs/{name}/code"),
    ("GET", "/jobs/{name}/difference"),
    ("GET", "/server"),
    ("POST", "/jobs/{name}/cancel"),
    ("POST", "/login"),
]
_MANY = ENTRIES_MAX - 1000
_BYTES = MAX_BODY_BYTES - 2**16
_HEAD = HEAD_MAX - 2**12
_BRACKETS = b"[" * _BYTES
EACH_VALUE = {paths.JOBS, "/public/v2/jobs"}
"""Paths of operations that get each value."""
_HERE = "@value@"
"""Stands for a value in a body."""


class Operation(NamedTuple):
    """An operation of a server, without its host."""

    method: str
    path: str
    parameters: tuple[str, ...] = ()
    """Names of its parameters in the query."""
    model: type[BaseModel] | None = None
    """Model of its body; None: it has no body."""

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class Sent(NamedTuple):
    """A request with hostile sizes."""

    what: str
    operation: Operation
    path: str
    body: bytes


def operations() -> list[Operation]:
    """All operations of both APIs, and of the pages."""
    found = [
        Operation(method, str(route.path), _parameters(route), _model(route))
        for app in (rest_api(), platform_api())
        for route in iter_route_contexts(app.routes)
        for method in sorted(route.methods or ())
    ]
    return found + [Operation(method, path) for method, path in PAGES]


def _parameters(route: RouteContext) -> tuple[str, ...]:
    return tuple(each.alias for each in route.dependant.query_params)


def _model(route: RouteContext) -> type[BaseModel] | None:
    model = route.body_field.field_info.annotation if route.body_field else None
    return model if isinstance(model, type) and issubclass(model, BaseModel) else None


def requests_for(operation: Operation) -> Iterator[Sent]:
    """Requests with hostile sizes for one operation. All operations read a body in the same way, so
    that those in EACH_VALUE alone get each value, and the others the value that costs most. The
    fields of each model get hostile values."""
    usual = _path(operation, "x")
    if operation.path.count("{"):
        yield Sent("a long path", operation, _path(operation, "x" * _HEAD), b"")
        yield Sent("digits in the path", operation, _path(operation, "9" * 5000), b"")
    for name in operation.parameters:
        for what, value in _queries().items():
            yield Sent(f"{name}: {what}", operation, f"{usual}?{name}={value}", b"")
    yield Sent("many parameters", operation, f"{usual}?{'label=a=b&' * 6000}", b"")
    if operation.method not in ("POST", "PUT"):
        yield Sent("a body", operation, usual, _BRACKETS)
        return
    costly = "keys" if operation.model else "a long text"
    for what in _values() if operation.path in EACH_VALUE else [costly]:
        yield Sent(what, operation, usual, _values()[what].encode())
    if operation.model is None:
        return
    if operation.path != paths.RENDER:  # it has the model of a submit
        for what, text in _parts(operation.model):
            yield Sent(what, operation, usual, text.encode())
    for what, body in valid_bodies(operation.model):
        yield Sent(what, operation, usual, json.dumps(body).encode())


def _path(operation: Operation, value: str) -> str:
    names = re.findall(r"\{(\w+)(?::path)?\}", operation.path)
    found = re.sub(r"\{\w+:path\}", "{}", re.sub(r"\{\w+\}", "{}", operation.path))
    usual = {
        "name": "train",
        "session": "0" * 32,
        "attempt": "1",
        "worker": "0",
        "rank": "0",
        "sha256": "0" * 64,
    }
    given = [usual.get(name, value) if value == "x" else value for name in names[:1]]
    given += [usual.get(name, "x") for name in names[1:]]
    return found.format(*given)


def _queries() -> dict[str, str]:
    return {
        "long": "x" * _HEAD,
        "digits": "9" * _HEAD,
        "brackets": "(" * 1000,
        "an expression": "(?i)" + "[!-\U0010ffff]" * 190,
    }


@cache
def _values() -> dict[str, str]:
    """Values with hostile sizes, as JSON."""
    return {
        "keys": json.dumps({f"k{number}": 1 for number in range(_MANY)}),
        "numbers": json.dumps([1] * _MANY),
        "texts": json.dumps(["x"] * _MANY),
        "long texts": json.dumps(["x" * (_BYTES // _MANY - 4)] * _MANY),
        "lists": "[" + "[]," * (_MANY // 2) + "[]]",
        "a long text": json.dumps("x" * _BYTES),
        "escapes": f'"{chr(92)}u0041' + f"{chr(92)}u20ac" * (_BYTES // 6 - 1) + '"',
        "depth": "[" * (_MANY // 2) + "]" * (_MANY // 2),
        "digits": "9" * _BYTES,
        "too many keys": json.dumps({f"k{number}": 1 for number in range(5 * _MANY)}),
        "too many lists": "[" + "[[[[[[[]]]]]]]," * (_BYTES // 16) + "[]]",
    }


_JOB: dict[str, Any] = {
    "spec": {"script": "echo", "type": "binary"},
    "code": {"mode": "in_place"},
}
_REPORT = {
    "protocol": PROTOCOL,
    "worker": 0,
    "attempt": 1,
    "exit_code": 0,
    "reason": Reason.COMPLETED,
    "message": "",
    "ended_at": "2026-11-29T00:00:00+00:00",
    "ranks": [],
    "log_end_seq": 0,
    "log_end_offset": 0,
}
_INNER: Mapping[type[BaseModel], list[tuple[str, Any]]] = {
    SubmitRequest: [
        ("spec", {"spec": _HERE}),
        ("environment", _JOB | {"submitter": {"environment": _HERE}}),
    ],
    GroupRequest: [
        ("args of a member", {"name": "g", "request": _JOB, "members": [{"args": _HERE}]}),
        ("values", {"name": "g", "request": _JOB, "members": [{"args": [], "values": _HERE}]}),
    ],
}
"""Bodies of models in which one part below their fields is replaced by a hostile value."""


def _parts(model: type[BaseModel]) -> Iterator[tuple[str, str]]:
    """Bodies in which one field has a hostile value of its type, if it takes more than one value;
    other fields refuse it at once, so one of each type is enough."""
    tried = set()
    fields = [(name, each, {name: _HERE}) for name, each in model.model_fields.items()]
    for name, each in JobSpec.model_fields.items() if model is SubmitRequest else ():
        fields.append((f"spec.{name}", each, _JOB | {"spec": {**_JOB["spec"], name: _HERE}}))
    for place, each, template in fields:
        annotation = str(each.annotation)
        is_list = "list[" in annotation
        kind = annotation if is_list or "dict[" in annotation else "one value"
        if kind not in tried:
            tried.add(kind)
            yield _with_value(place, template, "texts" if is_list else "keys")
    for place, template in _INNER.get(model, []):
        yield _with_value(place, template, "keys")


def _with_value(place: str, template: Any, value: str) -> tuple[str, str]:
    text = json.dumps(template).replace(json.dumps(_HERE), _values()[value])
    return f"{place}: {value}", text


def valid_bodies(model: type[BaseModel]) -> Iterator[tuple[str, Any]]:
    """The largest bodies that the model allows."""
    if model is SubmitRequest:
        environment = {f"k{number}": "x" * 1600 for number in range(10_000)}
        yield "a large environment", _JOB | {"submitter": {"environment": environment}}
        arguments = ["x" * 1600] * 10_000
        yield "large arguments", _JOB | {"spec": {**_JOB["spec"], "args": arguments}}
    elif model is GroupRequest:
        group = {"name": "g", "request": _JOB}
        many_values = {f"k{number}": 1 for number in range(190)}
        members: dict[str, Any] = {
            "many arguments": {"args": ["x"] * 190},
            "long arguments": {"args": ["x" * 16_000]},
            "many values": {"args": [], "values": many_values},
        }
        for what, member in members.items():
            yield f"a group of {what}", group | {"members": [member] * 1000}
    elif model is RunJobRequest:
        variables = {f"k{number}": "x" * 1600 for number in range(10_000)}
        yield "a large environment", {"script": "echo", "env_variables": variables}
    elif model is WorkerReport:
        yield "a report with many notes", _REPORT | {"notes": ["x"] * _MANY}
        yield "a report with long notes", _REPORT | {"notes": ["x" * 1600] * 10_000}
    elif model is WorkerStacks:
        yield "many processes", {"mark": "m", "processes": [{}] * (_MANY // 2)}
