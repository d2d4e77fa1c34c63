"""`client-lib status`."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import click

from client_lib.cli import printer, show
from client_lib.cli.connection import Connection
from client_lib.cli.parameters import JSON, NAME, connected, job_name, output
from client_lib.spec.states import FINAL, State

TEXT = "text"


@click.command(
    "status",
    epilog="""\b
Examples:
  client-lib status train-x7k2m
  client-lib status train --events               the only job whose name begins so
  client-lib status train-x7k2m -o json | jq -r .state
""",
)
@job_name
@click.option("--events", is_flag=True, help="What happened to it so far, instead.")
@output(TEXT, JSON, NAME)
@connected
def command(connection: Connection, name: str, events: bool, output: str) -> None:
    """Where a job is, and why; of a failed one the report."""
    job = connection.job(name)
    if events:
        _show_events(connection, job["name"], output)
    elif output == JSON:
        printer.data_json(job)
    elif output == NAME:
        printer.data(job["name"])
    else:
        printer.lines(show.job_lines(job, datetime.now(timezone.utc)))
        if job["state"] == State.FAILED:
            printer.lines(_report(job))
        printer.hint(f"\n`client-lib logs {job['name']}{'' if job['state'] in FINAL else ' -f'}` shows its output")


def _report(job: dict[str, Any]) -> list[str]:
    """As `wait` raises it. Only a failed job is worth loading pydantic for."""
    from client_lib import failure_report
    from client_lib.spec.wire import JobInfo

    info = JobInfo.model_validate(job)
    known = info.failure.hint if info.failure else None
    return ["", *failure_report.report(info).splitlines(), *([f"hint: {known}"] if known else [])]


def _show_events(connection: Connection, name: str, output: str) -> None:
    events = [event.model_dump(mode="json") for event in connection.client.job_events(name)]
    if output == JSON:
        printer.data_json(events)
    else:
        printer.table(show.EVENT_COLUMNS, map(show.event_row, events))
