"""`client-lib instances`."""

from __future__ import annotations

import click

from client_lib.cli import printer, show
from client_lib.cli.connection import Connection
from client_lib.cli.parameters import JSON, NAME, TABLE, connected, output


@click.command(
    "instances",
    epilog="""\b
Examples:
  client-lib instances
  client-lib instances -o json | jq '.[] | select(.gpus >= 8) | .name'
""",
)
@output(TABLE, JSON, NAME)
@connected
def command(connection: Connection, output: str) -> None:
    """The instance types of the server, and how many workers of each fit right now."""
    kinds = connection.instance_types()
    if output == JSON:
        printer.data_json(kinds)
    elif output == NAME:
        printer.lines(kind["name"] for kind in kinds)
    else:
        printer.table(show.INSTANCE_COLUMNS, map(show.instance_row, kinds))
