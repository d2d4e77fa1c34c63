"""`client-lib delete`."""

from __future__ import annotations

import click

from client_lib.cli import printer
from client_lib.cli.changes import each
from client_lib.cli.connection import Connection
from client_lib.cli.parameters import connected, job_names


@click.command(
    "delete",
    epilog="""\b
Examples:
  client-lib delete train-x7k2m
  client-lib list --all --state FAILED -o name | xargs client-lib delete
""",
)
@job_names
@click.option("--force", is_flag=True, help="Also one that runs: it is stopped first.")
@connected
def command(connection: Connection, names: tuple[str, ...], force: bool) -> int:
    """Remove jobs that have ended, and their logs."""
    return each(connection, names, lambda name: printer.data(connection.client.delete_job(name, force=force)))
