"""Writes the OpenAPI documents, and the JSON Schemas of the job spec and of explanations, into a
folder.

python docs/schemas.py docs    # `make docs` calls it; a test compares
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from client_lib.spec.job import JobSpec
from client_lib.spec.wire import Explanation
from server_stub.app import openapi, rest_api
from server_stub.http.api import public_v2


def schema(model: type[BaseModel], mode: Literal["validation", "serialization"]) -> dict[str, Any]:
    """The JSON Schema of a model as users write it, or as they receive it."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | model.model_json_schema(
        mode=mode
    )


def main(folder: Path) -> None:
    documents = {
        "openapi.json": openapi(rest_api()),
        "openapi-public-v2.json": openapi(public_v2.routes()),
        "job-spec.schema.json": schema(JobSpec, "validation"),
        "explanation.schema.json": schema(Explanation, "serialization"),
    }
    for name, document in documents.items():
        text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
