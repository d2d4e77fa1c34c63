"""`client-lib cancel` and `client-lib delete`: both change each of several jobs."""

from __future__ import annotations

from typing import Annotated

import typer

from client_lib.cli import printer
from client_lib.cli.connection import Connection
from client_lib.cli.job_names import change_each
from client_lib.cli.parameters import Command, ProfileOption, ServerOption, WholeJobNames, command_app

app = command_app()


@app.command(
    "cancel",
    cls=Command,
    epilog="""\b
Examples:
  client-lib cancel train-x7k2m
  client-lib list --state PENDING -o name | xargs client-lib cancel
""",
)
def cancel(names: WholeJobNames, endpoint: ServerOption = None, profile: ProfileOption = None) -> int:
    """Stop jobs: SIGTERM, and SIGKILL after the grace period. Their logs stay."""
    connection = Connection(endpoint, profile)

    def cancel_one(name: str) -> None:
        info = connection.client.cancel_job(name)
        printer.data(f"{info.name} {info.state}")
        if not info.state.final:
            printer.hint(f"its processes are being stopped; `client-lib wait {name}` waits until they are")

    return change_each(names, cancel_one, connection.names)


@app.command(
    "delete",
    cls=Command,
    epilog="""\b
Examples:
  client-lib delete train-x7k2m
  client-lib list --all --state FAILED -o name | xargs client-lib delete
""",
)
def delete(
    names: WholeJobNames,
    force: Annotated[bool, typer.Option("--force", help="Also one that runs: it is stopped first.")] = False,
    endpoint: ServerOption = None,
    profile: ProfileOption = None,
) -> int:
    """Remove jobs that have ended, and their logs."""
    connection = Connection(endpoint, profile)

    def delete_one(name: str) -> None:
        printer.data(connection.client.delete_job(name, force=force))

    return change_each(names, delete_one, connection.names)
