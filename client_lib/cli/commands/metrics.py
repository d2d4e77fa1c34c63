"""`client-lib metrics`, `client-lib best` and `client-lib compare`: the curves of one job, and those of several."""

from __future__ import annotations

import csv
import sys
import time
from functools import partial
from typing import Annotated, Any, Literal

import typer

from client_lib.cli import printer
from client_lib.cli.connection import Connection, Json, read
from client_lib.cli.parameters import JSON, CommandApp, JobOrNewest, TableJsonOrCsv, TextOrJson, WholeJobNames
from client_lib.errors import Conflict, Forbidden
from client_lib.reports import curves
from client_lib.spec import paths
from client_lib.spec.states import FINAL

app = CommandApp()
_PAUSE_S = 1.0
CSV = "csv"
_SHOWN, _WRITTEN = 1000, 10_000_000  # points of a curve: on the terminal, and as data
_OF_RANK_0 = {"rank": "0", "points": str(_SHOWN)}


def _rank(text: str) -> str:
    if text not in ("all", "workers") and not text.isdecimal():
        raise typer.BadParameter(f"{text!r} is neither a rank nor `all` or `workers`")
    return text


@app.command(
    epilog="""\b
Examples:
  client-lib metrics train-x7k2m
  client-lib metrics train --watch               until the job has ended
  client-lib metrics train-x7k2m -o csv > curves.csv
  client-lib metrics train-x7k2m --rank workers  CPU cores, memory and GPUs in use
  client-lib metrics train-x7k2m --rank all -o json | jq '.curves[] | {name, rank}'
"""
)
def metrics(
    connection: Connection,
    name: JobOrNewest = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Print again whenever they change, to the end.")] = False,
    rank: Annotated[
        Any,
        typer.Option(
            parser=_rank, metavar="N", help="Metrics of this rank, of `all` ranks, or what the `workers` use."
        ),
    ] = "0",
    output: Annotated[
        Literal["text", "json", "csv"], typer.Option("-o", "--output", help="Form of what is printed.")
    ] = "text",
) -> None:
    """Show the losses and other metrics of a job: the curve, the last and the best value of each.

    They are read from the lines that the job prints and from files of TensorBoard and Lightning; the script needs no
    change. BEST is the smallest loss or error, or the largest accuracy or score; empty for other metrics.
    """
    job = connection.job(name)
    if watch and output != "text":
        raise typer.BadParameter("--watch prints text; leave out -o")
    params = {"rank": rank, "points": str(_SHOWN if output == "text" else _WRITTEN)}
    fetch = partial(read, connection.rest, paths.job(job["name"], "metrics"), "curves", params)
    found = fetch()
    if output == JSON:
        printer.data_json(found)
    elif output == CSV:
        csv.writer(sys.stdout, lineterminator="\n").writerows(curves.csv_rows(found))
        for reason in curves.missing(found):
            printer.hint(reason)
    else:
        _print(found)
    while watch and job["state"] not in FINAL:
        time.sleep(_PAUSE_S)
        job, before, found = connection.job(job["name"]), found, fetch()
        if found != before:
            if sys.stdout.isatty():
                sys.stdout.write("\x1b[H\x1b[J")  # clears the screen
            _print(found)


@app.command(
    epilog="""\b
Examples:
  client-lib best lr-scan --by val_loss
  client-lib best lr-scan first-try --by accuracy -o json | jq -r '.[0].name'
"""
)
def best(
    connection: Connection,
    names: WholeJobNames,
    by: Annotated[str, typer.Option("--by", metavar="METRIC", help="Name of the metric, as in `client-lib metrics`.")],
    largest: Annotated[
        bool | None,
        typer.Option(
            "--max/--min", help="Which value is the best. Default: chosen by the metric's name, as in `metrics`."
        ),
    ] = None,
    output: TextOrJson = "text",
) -> None:
    """Rank jobs, or the members of groups, by the best value of a metric of rank 0."""
    ranked = curves.ranked(_measured(connection, names), by, largest)
    if output == JSON:
        printer.data_json(ranked)
    else:
        printer.table(curves.RANKING, curves.ranking(ranked), cut=("SCRIPT",))
    if largest is None and curves.grows(by) is None:
        printer.hint(f"the smallest {by} counts as the best; use --max if the largest does")


@app.command(
    epilog="""\b
Examples:
  client-lib compare train-x7k2m train-p4c9d
  client-lib compare lr-scan first-try           the members of a group, and a job
  client-lib compare lr-scan -o csv > runs.csv
"""
)
def compare(connection: Connection, names: WholeJobNames, output: TableJsonOrCsv = "table") -> None:
    """Show jobs, or the members of groups, beside each other: arguments that differ, last and best values of metrics.

    The metrics are those of rank 0. A metric has no best value if its name, such as lr, does not tell which value is
    better. `client-lib diff A B` shows all differences between two jobs.
    """
    found = curves.compared(_measured(connection, names))
    headings, *rows = curves.compared_rows(found, exact=output == CSV)
    if output == JSON:
        printer.data_json(found)
    elif output == CSV:
        csv.writer(sys.stdout, lineterminator="\n").writerows([headings, *rows])
    else:
        printer.table(headings, rows)
    if len(found) == 1:
        printer.hint(f"{found[0]['name']} is one job: name others to see in which arguments they differ")
    elif not any(job["arguments"] for job in found):
        printer.hint("their arguments are the same; `client-lib diff A B` compares code, packages and hardware, too")
    if not any(job["metrics"] for job in found):
        printer.hint("none of them has printed metrics so far")


def _measured(connection: Connection, names: list[str]) -> list[tuple[Json, list[Json]]]:
    """The jobs, and the members of groups in the place of these, each once, with their curves of rank 0."""
    jobs = {job["name"]: job for name in names for job in connection.members(name) or [connection.job(name)]}
    return [(job, _curves(connection, name)) for name, job in jobs.items()]


def _curves(connection: Connection, name: str) -> list[Json]:
    """The curves of rank 0; [] and a hint with the reason if the server refuses to show them."""
    try:
        found: list[Json] = read(connection.rest, paths.job(name, "metrics"), "curves", _OF_RANK_0)["curves"]
    except (Conflict, Forbidden) as refused:
        printer.hint(refused.message)
        return []
    return found


def _print(found: dict[str, Any]) -> None:
    if not found["curves"]:
        printer.hint(f"{found['job']} has no values here so far; metrics are printed numbers like `step 3 loss=0.12`")
    else:
        printer.table(curves.HEADINGS, curves.rows(found), cut=("CURVE",))
    printer.lines(curves.facts(found))
    sys.stdout.flush()
