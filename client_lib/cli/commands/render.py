"""`client-lib render`."""

from __future__ import annotations

from typing import Any

import typer

from client_lib.cli import printer, submit_steps
from client_lib.cli.connection import Connection
from client_lib.cli.job_options import ConfigOption, with_job_options
from client_lib.cli.parameters import JSON, Command, ProfileOption, ServerOption, YamlOrJson, command_app

app = command_app()


@app.command(
    "render",
    cls=Command,
    context_settings=submit_steps.STOP_AT_SCRIPT,
    epilog="""\b
Examples:
  client-lib render -N 2 train.py --epochs 3
  client-lib render -c job.yaml -o json | jq '.objects[0]'
""",
)
@with_job_options
def render(
    ctx: typer.Context,
    config: ConfigOption = None,
    output: YamlOrJson = "yaml",
    endpoint: ServerOption = None,
    profile: ProfileOption = None,
    **values: Any,
) -> None:
    """Show what a submit with these arguments would create, secrets masked; nothing is created."""
    described = submit_steps.job_of(ctx, Connection(endpoint, profile), config, values)
    printer.data(submit_steps.manifest_text(submit_steps.render(described), as_json=output == JSON))
