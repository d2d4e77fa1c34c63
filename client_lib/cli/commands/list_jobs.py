"""`client-lib list`."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Annotated, Any

import typer

from client_lib.cli import printer, show
from client_lib.cli.connection import Connection
from client_lib.cli.parameters import (
    JSON,
    NAME,
    Command,
    ProfileOption,
    ServerOption,
    TableJsonOrName,
    command_app,
    key_value,
)
from client_lib.spec.states import State

LIMIT = 50

app = command_app()


@app.command(
    "list",
    cls=Command,
    epilog="""\b
Examples:
  client-lib list --state RUNNING
  client-lib list -l team=vision --name train -o name
  client-lib list --all -o json | jq '.[].name'
""",
)
def list_jobs(
    state: Annotated[State | None, typer.Option(case_sensitive=False, help="Only jobs in this state.")] = None,
    labels: Annotated[
        list[Any] | None,  # pairs of key and value
        typer.Option("-l", "--label", parser=key_value, metavar="KEY=VALUE", help="Only jobs with this label."),
    ] = None,
    name: Annotated[str | None, typer.Option(metavar="PREFIX", help="Only jobs whose name begins so.")] = None,
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, help="Show at most this many.")] = LIMIT,
    everything: Annotated[bool, typer.Option("--all", help="All of them, however many.")] = False,
    output: TableJsonOrName = "table",
    endpoint: ServerOption = None,
    profile: ProfileOption = None,
) -> None:
    """List your jobs, newest first."""
    most = None if everything else limit
    jobs = Connection(endpoint, profile).jobs(limit=most, state=state, name=name, labels=dict(labels or ()))
    if output == JSON:
        printer.data_json(jobs)
    elif output == NAME:
        printer.lines(job["name"] for job in jobs)
    elif jobs:
        now = datetime.now(timezone.utc)
        printer.table(show.JOB_COLUMNS, [show.job_row(job, now) for job in jobs])
    else:
        printer.hint(
            "no jobs" + (" like that" if state or labels or name else "; `client-lib submit SCRIPT` starts one")
        )
    if len(jobs) == most:
        printer.hint(f"these are the newest {most}; --all shows all")
