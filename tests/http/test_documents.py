"""The committed documents are what the code makes of itself, and hold every path."""

import subprocess
import sys
from pathlib import Path
from typing import get_args

from fastapi.routing import iter_route_contexts

from client_lib.spec import paths
from server_stub.app import openapi, rest_api

DOCS = Path(__file__).parents[2] / "docs"


def test_the_committed_documents_are_those_that_the_code_makes(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(DOCS / "schemas.py"), str(tmp_path)], check=True)
    made = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    assert len(made) == 4
    for name, text in made.items():
        assert (DOCS / name).read_text(encoding="utf-8") == text, "run: make docs"


def test_every_route_is_documented_with_an_answer_and_an_error() -> None:
    document = openapi(rest_api())
    for route in iter_route_contexts(rest_api().routes):
        for method in route.methods or ():
            described = document["paths"][route.path_format][method.lower()]
            assert described["summary"]
            assert "default" in described["responses"]


def test_every_reference_leads_somewhere() -> None:
    document = openapi(rest_api())
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
