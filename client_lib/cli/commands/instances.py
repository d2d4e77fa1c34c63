"""`client-lib instances`."""

from __future__ import annotations

from client_lib.cli import printer, show
from client_lib.cli.connection import Connection
from client_lib.cli.parameters import JSON, NAME, Command, ProfileOption, ServerOption, TableJsonOrName, command_app

app = command_app()


@app.command(
    "instances",
    cls=Command,
    epilog="""\b
Examples:
  client-lib instances
  client-lib instances -o json | jq '.[] | select(.gpus >= 8) | .name'
""",
)
def instances(
    output: TableJsonOrName = "table",
    endpoint: ServerOption = None,
    profile: ProfileOption = None,
) -> None:
    """List the instance types of the server, and how many workers of each fit right now."""
    kinds = Connection(endpoint, profile).instance_types()
    if output == JSON:
        printer.data_json(kinds)
    elif output == NAME:
        printer.lines(kind["name"] for kind in kinds)
    else:
        printer.table(show.INSTANCE_COLUMNS, map(show.instance_row, kinds))
