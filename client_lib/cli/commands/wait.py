"""`client-lib wait`."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from client_lib.cli import exits, printer
from client_lib.cli.connection import Connection
from client_lib.cli.parameters import Command, JobNames, ProfileOption, ServerOption, command_app
from client_lib.errors import ClientLibError

app = command_app()


@app.command(
    "wait",
    cls=Command,
    epilog="""\b
Examples:
  client-lib wait train-x7k2m && client-lib submit evaluate.py
  client-lib wait --timeout 600 a-job another-job

\b
Exit code:
  0 all SUCCEEDED; else that of the first that did not: 1 FAILED, 3 CANCELLED, 124 the time is over
""",
)
def wait(
    names: JobNames,
    timeout_s: Annotated[
        float | None,
        typer.Option("--timeout", min=0, metavar="SECONDS", help="For all of them. Default: no limit."),
    ] = None,
    endpoint: ServerOption = None,
    profile: ProfileOption = None,
) -> int:
    """Wait until jobs have ended, and print how. Ctrl-C stops waiting; the jobs keep running."""
    connection = Connection(endpoint, profile)
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    codes = []
    for name in names:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        codes.append(_wait(connection, name, left))
    return next((code for code in codes if code), exits.DONE)


def _wait(connection: Connection, name: str, timeout_s: float | None) -> int:
    try:
        job = connection.client.get_job(connection.job(name)["name"])
        with printer.hint_on_interrupt(job.name or ""), printer.progress(f"waiting for {job.name}"):
            info = job.wait(timeout_s)
    except ClientLibError as problem:
        printer.error(problem)
        return exits.of_error(problem)
    printer.data(f"{info.name} {info.state}")
    return exits.DONE
