"""Makes the documents under `docs/` from the code: OpenAPI, and the JSON Schemas of the job spec and of explanations.

`python -m server_stub.openapi --write docs`; a test compares them with what is committed. Not used by a running server.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from client_lib.spec import wire
from client_lib.spec.explanation import Explanation
from client_lib.spec.job import JobSpec
from server_stub.api.operation import ERROR
from server_stub.api.public_v2 import application as public_v2
from server_stub.app import routes

MODELS: tuple[type[BaseModel], ...] = (
    wire.SubmitRequest,
    wire.JobInfo,
    wire.JobPage,
    wire.EventList,
    wire.Answer,
    wire.Manifest,
    wire.ServerInfo,
    wire.DoctorReport,
    wire.InstanceTypes,
    wire.WorkerSays,
    wire.WorkerOrder,
    wire.LogLengths,
    wire.OutputList,
    wire.OutputLength,
    wire.ErrorBody,
)
"""What travels; the models inside them come along."""


def openapi() -> dict[str, Any]:
    """The OpenAPI document of `/api/v1`."""
    document = routes().openapi()
    _, schemas = models_json_schema(
        [(model, "validation") for model in MODELS], ref_template="#/components/schemas/{model}"
    )
    _answer_errors_alike(document)
    components = document.setdefault("components", {})
    components["schemas"] = schemas["$defs"]
    components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"token": []}]
    return document


def _answer_errors_alike(document: dict[str, Any]) -> None:
    """FastAPI documents a 422 of its own form for handlers with parameters; ours answer it like any other error."""
    for path in document["paths"].values():
        for description in path.values():
            description["responses"].pop("422", None)
            description["responses"].setdefault("default", ERROR)


def public_v2_openapi() -> dict[str, Any]:
    """The OpenAPI document of `/public/v2`, the words of ML Space."""
    document = public_v2.routes().openapi()
    document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"token": []}]
    return document


def schema(model: type[BaseModel], mode: Literal["validation", "serialization"]) -> dict[str, Any]:
    """The JSON Schema of what users write, or of what they get."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | model.model_json_schema(mode=mode)


def documents() -> dict[str, str]:
    """File name -> content."""
    made = {
        "openapi.json": openapi(),
        "openapi-public-v2.json": public_v2_openapi(),
        "job-spec.schema.json": schema(JobSpec, "validation"),
        "explanation.schema.json": schema(Explanation, "serialization"),
    }
    return {name: json.dumps(document, indent=2, ensure_ascii=False) + "\n" for name, document in made.items()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="server_stub.openapi", description="Write the documents made from the code.")
    parser.add_argument("--write", type=Path, required=True, metavar="FOLDER")
    folder: Path = parser.parse_args().write
    folder.mkdir(exist_ok=True)
    for name, text in documents().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
