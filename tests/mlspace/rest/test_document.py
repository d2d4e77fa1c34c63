"""The promises of docs/openapi-public-v2.json, and their cost for those who
never ask in these words.
"""

import subprocess
import sys

import pytest

from server_stub.app import openapi
from server_stub.http.api import public_v2


def test_every_operation_tells_its_errors() -> None:
    document = openapi(public_v2.routes())
    for path in document["paths"].values():
        for operation in path.values():
            assert {"200", "400", "401", "404", "422", "503"} <= operation["responses"].keys()
            assert operation["summary"]


def test_logs_are_text_and_everything_else_json() -> None:
    for path, operations in openapi(public_v2.routes())["paths"].items():
        for operation in operations.values():
            (kind,) = operation["responses"]["200"]["content"]
            assert kind == ("text/plain" if path.endswith("/logs") else "application/json")


@pytest.mark.process
def test_a_server_starts_without_it() -> None:
    asks = (
        "import sys, server_stub.serve; sys.exit(any('public_v2' in name for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", asks], check=False).returncode == 0
