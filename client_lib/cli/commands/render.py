"""`client-lib render`."""

from __future__ import annotations

from typing import Any

import click

from client_lib.cli import manifest, printer, submitting
from client_lib.cli.connection import Connection
from client_lib.cli.parameters import JSON, connected, output

YAML = "yaml"


@click.command(
    "render",
    context_settings=submitting.STOP_AT_SCRIPT,
    epilog="""\b
Examples:
  client-lib render -N 2 train.py --epochs 3
  client-lib render -c job.yaml -o json | jq '.objects[0]'
""",
)
@output(YAML, JSON)
@connected
@submitting.job_arguments
def command(connection: Connection, file: str | None, output: str, **values: Any) -> None:
    """What a submit with these arguments would create, secrets masked; nothing is created."""
    asked = submitting.job_of(connection, values, file)
    printer.data(manifest.text(submitting.render(asked), as_json=output == JSON))
