"""The committed documents are what the code makes of itself, and hold every path."""

from pathlib import Path
from typing import get_args

import pytest
from fastapi.routing import iter_route_contexts

from client_lib.spec import paths
from server_stub.app import rest_api
from server_stub.openapi import documents, openapi

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(("name", "text"), documents().items(), ids=documents())
def test_the_committed_document_is_the_one_the_code_makes(name: str, text: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == text, "run: python -m server_stub.openapi --write docs"


def test_every_route_is_documented_with_an_answer_and_an_error() -> None:
    document = openapi()
    for route in iter_route_contexts(rest_api().routes):
        for method in route.methods:
            described = document["paths"][route.path_format][method.lower()]
            assert described["summary"]
            assert "default" in described["responses"]


def test_every_reference_leads_somewhere() -> None:
    document = openapi()
    schemas = document["components"]["schemas"]
    missing = {ref for ref in _references(document) if ref.rsplit("/", 1)[-1] not in schemas}
    assert not missing


def test_the_paths_of_the_wire_are_the_paths_of_the_server() -> None:
    there = {route.path for route in iter_route_contexts(rest_api().routes)}
    for part in (None, *get_args(paths.JobPart)):
        assert paths.job("NAME", part).replace("NAME", "{name}") in there
    assert paths.snapshot("SHA").replace("SHA", "{sha256}") in there
    rest = {paths.JOBS, paths.RENDER, paths.INFO, paths.DOCTOR, paths.INSTANCE_TYPES}
    assert rest | {paths.HEALTHZ, paths.READYZ, paths.METRICS} <= there


def _references(part: object) -> list[str]:
    if isinstance(part, dict):
        own = [str(part["$ref"])] if "$ref" in part else []
        return own + [ref for value in part.values() for ref in _references(value)]
    if isinstance(part, list):
        return [ref for value in part for ref in _references(value)]
    return []
