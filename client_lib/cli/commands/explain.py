"""`client-lib explain`."""

from __future__ import annotations

import click

from client_lib.cli import printer
from client_lib.cli.connection import Connection
from client_lib.cli.parameters import connected, job_name


@click.command(
    "explain",
    epilog="""\b
Examples:
  client-lib explain train-x7k2m
  watch client-lib explain train                 the only job whose name begins so
""",
)
@job_name
@connected
def command(connection: Connection, name: str) -> None:
    """Why a job waits, or why it failed: the reason, what happened before, and the next step."""
    job = connection.client.get_job(connection.job(name)["name"])
    printer.lines(job.explain().splitlines())
