"""`client-lib list` and `client-lib instances`: tables of jobs and of instance types."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Annotated, Any, Literal

import typer

from client_lib.cli import printer
from client_lib.cli.connection import Connection, Json
from client_lib.cli.parameters import JSON, NAME, CommandApp, TableJsonOrName, group_names, key_value
from client_lib.errors import InvalidRequest
from client_lib.reports import table
from client_lib.spec import paths
from client_lib.spec.states import State

LIMIT = 50


def _columns(text: str) -> list[str]:
    """`name,state` -> their headings."""
    return [_column(name) for name in text.split(",")]


def _column(name: str) -> str:
    heading = name.strip().upper()
    if heading not in table.COLUMNS:
        raise typer.BadParameter(f"there is no column {name!r}; there are {', '.join(table.COLUMNS).lower()}")
    return heading


def _order(text: str) -> tuple[str, bool]:
    """`-took` -> its heading, True: descending."""
    return _column(text.removeprefix("-")), text.startswith("-")


app = CommandApp()


@app.command(
    "list",
    epilog="""\b
Examples:
  client-lib list --state RUNNING
  client-lib list -l team=vision --name train -o name
  client-lib list lr-scan                        the members of a group
  client-lib list --sort -took --columns name,took,script
  client-lib list --all -o json | jq '.[].name'
""",
)
def list_jobs(
    connection: Connection,
    group: Annotated[
        str | None,
        typer.Argument(
            metavar="[GROUP]", autocompletion=group_names, help="Show the members of this group.", show_default=False
        ),
    ] = None,
    state: Annotated[State | None, typer.Option(case_sensitive=False, help="Only jobs in this state.")] = None,
    labels: Annotated[
        list[Any] | None,  # pairs of key and value
        typer.Option("-l", "--label", parser=key_value, metavar="KEY=VALUE", help="Only jobs with this label."),
    ] = None,
    name: Annotated[str | None, typer.Option(metavar="PREFIX", help="Only jobs whose name begins so.")] = None,
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, help="Show at most this many.")] = LIMIT,
    everything: Annotated[bool, typer.Option("--all", help="All of them, however many.")] = False,
    sort: Annotated[
        Any, typer.Option(parser=_order, metavar="COLUMN", help="Sort what is shown; -COLUMN: the largest first.")
    ] = None,
    columns: Annotated[
        Any,
        typer.Option(parser=_columns, metavar="A,B", help="Only these columns: " + ", ".join(table.COLUMNS).lower()),
    ] = None,
    output: Annotated[
        Literal["table", "wide", "json", "name"],
        typer.Option("-o", "--output", help="Form of what is printed; wide: more columns, nothing cut off."),
    ] = "table",
) -> None:
    """List your jobs, newest first, one line each; a group is one line, unless --state, -l or -o asks for jobs.

    TOOK is the running time, SIZE the number of workers x processes of each. WHY is the reason why a job
    waits, hangs or failed; for other running jobs it is the progress, if known.
    """
    most = None if everything else limit
    asked: dict[str, Any] = {"limit": most, "state": state, "name": name, "labels": dict(labels or ()), "group": group}
    grouped = not (state or labels or group) and output in ("table", "wide")
    try:
        jobs = connection.jobs(**asked, grouped=grouped)
    except InvalidRequest:
        if not grouped:
            raise
        jobs = connection.jobs(**asked)  # a server that is older than groups
    now = datetime.now(timezone.utc)
    if sort:
        jobs = table.sorted_by(jobs, sort[0], now, descending=sort[1])
    if output == JSON:
        printer.data_json(jobs)
    elif output == NAME:
        printer.lines(job["name"] for job in jobs)
    elif jobs:
        wide = output == "wide"
        chosen = columns or (table.WIDE if wide else table.USUAL)
        printer.table(chosen, table.rows(jobs, now, chosen), cut=table.CUT, whole=wide)
    else:
        printer.hint(
            "no jobs" + (" like that" if state or labels or name else "; `client-lib submit SCRIPT` starts one")
        )
    if len(jobs) == most:
        printer.hint(f"these are the newest {most}; --all shows all")


@app.command(
    epilog="""\b
Examples:
  client-lib instances
  client-lib instances -o json | jq '.[] | select(.gpus >= 8) | .name'
"""
)
def instances(connection: Connection, output: TableJsonOrName = "table") -> None:
    """List the instance types of the server, and how many workers of each fit right now."""
    kinds = connection.items(paths.INSTANCE_TYPES, "instance_types")
    if output == JSON:
        printer.data_json(kinds)
    elif output == NAME:
        printer.lines(kind["name"] for kind in kinds)
    else:
        printer.table(("NAME", "GPUS", "CORES", "MEMORY", "FREE", "DESCRIPTION"), map(_instance_row, kinds))


def _instance_row(kind: Json) -> tuple[str, ...]:
    available = kind.get("available")
    return (
        kind["name"],
        str(kind["gpus"]),
        f"{kind['cpu']:g}",
        f"{kind['memory_gib']:g} GiB",
        "?" if available is None else str(available),
        kind.get("description", ""),
    )
