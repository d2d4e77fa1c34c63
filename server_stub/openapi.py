"""Makes the documents under `docs/` from the code: OpenAPI, and the JSON Schemas of the job spec and of explanations.

`python -m server_stub.openapi --write docs`; a test compares them with what is committed. Not used by a running server.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from client_lib.spec.job import JobSpec
from client_lib.spec.wire import Explanation
from server_stub.app import rest_api
from server_stub.http.api.public_v2 import application as public_v2


def openapi() -> dict[str, Any]:
    """The OpenAPI document of `/api/v1`."""
    return _with_tokens(rest_api().openapi())


def public_v2_openapi() -> dict[str, Any]:
    """The OpenAPI document of `/public/v2`, the API of ML Space."""
    return _with_tokens(public_v2.routes().openapi())


def _with_tokens(document: dict[str, Any]) -> dict[str, Any]:
    document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"token": []}]
    return document


def schema(model: type[BaseModel], mode: Literal["validation", "serialization"]) -> dict[str, Any]:
    """The JSON Schema of a model as users write it, or as they receive it."""
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
