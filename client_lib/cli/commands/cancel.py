"""`client-lib cancel`."""

from __future__ import annotations

import click

from client_lib.cli import printer
from client_lib.cli.changes import each
from client_lib.cli.connection import Connection
from client_lib.cli.parameters import connected, job_names


@click.command(
    "cancel",
    epilog="""\b
Examples:
  client-lib cancel train-x7k2m
  client-lib list --state PENDING -o name | xargs client-lib cancel
""",
)
@job_names
@connected
def command(connection: Connection, names: tuple[str, ...]) -> int:
    """Stop jobs: SIGTERM, and SIGKILL after the grace period. What they logged stays."""

    def cancel(name: str) -> None:
        info = connection.client.cancel_job(name)
        printer.data(f"{info.name} {info.state}")
        if not info.state.final:
            printer.hint(f"its processes are being stopped; `client-lib wait {name}` waits until they are")

    return each(connection, names, cancel)
