"""Requests that follow from our OpenAPI documents, right and wrong ones: no 500, no status, content
type, header or shape that the document does not know. The same ones each time. The server is real,
its runtime runs nothing: the commands are made up.
"""

from collections.abc import Mapping
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import checks
from schemathesis.schemas import BaseSchema
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from client_lib.spec import paths
from server_stub.app import openapi, rest_api
from server_stub.http.api import public_v2
from tests.http.conftest import Running
from tests.kit.examples import examples
from tests.mlspace.rest.conftest import COMMAND

CHECKS = [
    checks.not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
]
BOUNDED = settings(
    max_examples=examples(8),
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
OURS = openapi(rest_api())
PLATFORM = openapi(public_v2.routes())
SUBMIT = f"POST {paths.JOBS}"
"""Its bodies are made from the largest schema, JobSpec, which takes much of the time of these
tests."""
WITH_ONE_JOB = [f"POST {path}" for path in (paths.GROUPS, paths.RENDER)]
"""A JobSpec is a part of their bodies, too: there it is always the same one."""
KNOWN = ("job-waits", "job-ended", "job-failed")

one_operation = schemathesis.pytest.from_fixture("document")
"""Makes the requests when their test runs. Made while tests are collected, they would cost each
worker of pytest-xdist 20 s.
"""


@schemathesis.serializer("application/gzip", paths.RESULT)
def _bytes(context: Any, value: Any) -> bytes:
    del context
    return value if isinstance(value, bytes) else str(value).encode()


def _with_known_names(context: Any, path_parameters: dict[str, Any] | None) -> dict[str, Any]:
    """Half of the made-up names become those of what there is."""
    return {name: _known(name, value) for name, value in (path_parameters or {}).items()}


def _known(parameter: str, value: Any) -> Any:
    names = {"name": KNOWN, "allocation": ("default",), "place": ("default",)}.get(parameter)
    return (
        names[len(value) // 2 % len(names)]
        if names and isinstance(value, str) and len(value) % 2
        else value
    )


def _without_waiting(context: Any, query: dict[str, Any] | None) -> dict[str, Any] | None:
    """Operations that wait: for the end of a job that never starts, or for a minute."""
    return {
        name: value
        for name, value in (query or {}).items()
        if name not in ("follow", "after_version")
    }


def _without_framing(context: Any, headers: dict[str, Any] | None) -> dict[str, Any] | None:
    """Headers that belong to the connection: uvicorn refuses wrong ones before the
    application sees the request.
    """
    framing = ("content-length", "transfer-encoding", "connection", "upgrade", "expect")
    return {name: value for name, value in (headers or {}).items() if name.lower() not in framing}


@pytest.fixture
def server(shared_server: Running) -> Running:
    """With a job of each kind, whatever the test before did to them."""
    ann = shared_server.as_user("ann")
    for name in KNOWN:
        if ann("GET", paths.job(name)).status_code == 404:
            created = ann.submit(name=name, script=COMMAND["script"], type=COMMAND["type"]).json()
            if name != "job-waits":
                shared_server.call(lambda created=created: shared_server.runtime.end(created["id"]))
    return shared_server


def each(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Its operations by their names, each in a document without the others."""
    return {
        f"{method.upper()} {path}": document | {"paths": {path: {method: operation}}}
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    }


def with_one_job(document: dict[str, Any]) -> dict[str, Any]:
    """The document with one valid job in place of the schema of all jobs."""
    components = document["components"]
    one = {"type": "object", "enum": [COMMAND]}
    schemas = components["schemas"] | {"JobSpec": one}
    return document | {"components": components | {"schemas": schemas}}


def with_each(documents: Mapping[str, dict[str, Any]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("document", documents.values(), ids=documents, indirect=True)


@pytest.fixture
def document(request: pytest.FixtureRequest) -> BaseSchema:
    loaded = schemathesis.openapi.from_dict(request.param)
    loaded.hook("map_path_parameters")(_with_known_names)
    loaded.hook("map_headers")(_without_framing)
    loaded.hook("map_query")(_without_waiting)
    return loaded


OUR_OPERATIONS = each(OURS)
for name in WITH_ONE_JOB:
    OUR_OPERATIONS[name] = with_one_job(OUR_OPERATIONS[name])
WITH_A_JOB = {name: OUR_OPERATIONS.pop(name) for name in (SUBMIT, *WITH_ONE_JOB)}


@with_each(OUR_OPERATIONS)
@one_operation.parametrize()
@BOUNDED
def test_our_api_keeps_to_its_document(case: schemathesis.Case, server: Running) -> None:
    check_ours(case, server)


@pytest.mark.process
@with_each(WITH_A_JOB)
@one_operation.parametrize()
@settings(BOUNDED, max_examples=examples(4))
def test_requests_with_a_job_keep_to_our_document(case: schemathesis.Case, server: Running) -> None:
    check_ours(case, server)


def check_ours(case: schemathesis.Case, server: Running) -> None:
    headers = {"Authorization": f"Bearer {server.tokens['ann']}"}
    case.call_and_validate(base_url=server.url, headers=headers, checks=CHECKS, timeout=20)


@with_each(each(PLATFORM))
@one_operation.parametrize()
@BOUNDED
def test_the_platform_s_api_keeps_to_its_document(case: schemathesis.Case, server: Running) -> None:
    headers = {"Authorization": server.tokens["ann"]}
    case.call_and_validate(base_url=server.url, headers=headers, checks=CHECKS, timeout=20)
