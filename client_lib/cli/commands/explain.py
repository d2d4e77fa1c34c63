"""`client-lib explain`."""

from __future__ import annotations

import click

from client_lib.cli import printer
from client_lib.cli.connection import Connection
from client_lib.cli.parameters import JSON, connected, job_name, output

TEXT = "text"


@click.command(
    "explain",
    epilog="""\b
Examples:
  client-lib explain train-x7k2m
  watch client-lib explain train                 the only job whose name begins so
  client-lib explain train-x7k2m -o json | jq -r .next[0]
""",
)
@job_name
@output(TEXT, JSON)
@connected
def command(connection: Connection, name: str, output: str) -> None:
    """Why a job waits, or why it failed: the reason, what happened before, and the next step."""
    job = connection.client.get_job(connection.job(name)["name"])
    if output == JSON:
        printer.data_json(job.explanation().model_dump(mode="json"))
    else:
        printer.lines(job.explain().splitlines())
