"""`client-lib list`."""

from __future__ import annotations

from datetime import datetime, timezone

import click

from client_lib.cli import printer, show
from client_lib.cli.connection import Connection
from client_lib.cli.parameters import JSON, NAME, TABLE, connected, output
from client_lib.cli.value_types import KeyValue
from client_lib.spec.states import State

LIMIT = 50


@click.command(
    "list",
    epilog="""\b
Examples:
  client-lib list --state RUNNING
  client-lib list -l team=vision --name train -o name
  client-lib list --all -o json | jq '.[].name'
""",
)
@click.option(
    "--state", type=click.Choice([str(state) for state in State], case_sensitive=False), help="Only jobs in this state."
)
@click.option("-l", "--label", "labels", type=KeyValue(), multiple=True, help="Only jobs with this label.")
@click.option("--name", metavar="PREFIX", help="Only jobs whose name begins so.")
@click.option("-n", "--limit", type=click.IntRange(min=1), default=LIMIT, show_default=True, help="At most so many.")
@click.option("--all", "everything", is_flag=True, help="All of them, however many.")
@output(TABLE, JSON, NAME)
@connected
def command(
    connection: Connection,
    state: str | None,
    labels: tuple[tuple[str, str], ...],
    name: str | None,
    limit: int,
    everything: bool,
    output: str,
) -> None:
    """Your jobs, newest first."""
    asked = None if everything else limit
    jobs = connection.jobs(limit=asked, state=state, name=name, labels=dict(labels))
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
    if len(jobs) == asked:
        printer.hint(f"these are the newest {asked}; --all shows all")
