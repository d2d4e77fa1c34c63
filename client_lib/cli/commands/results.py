"""`client-lib metrics`, `checkpoints`, `best`, `compare`, `diff`, `code` and `download`: what
jobs measured, wrote and ran.
"""

import csv
import sys
import time
from datetime import datetime, timezone
from functools import partial
from typing import Annotated, Any, Literal

import typer
from typer import Argument, Option

from client_lib.cli import printer
from client_lib.cli.connection import Connection, Json
from client_lib.cli.parameters import (
    CommandApp,
    JobName,
    JobOrNewest,
    TableJsonOrCsv,
    TableOrJson,
    TextOrJson,
    WholeNames,
)
from client_lib.errors import Conflict, Forbidden
from client_lib.reports import curves
from client_lib.spec import paths
from client_lib.spec.metric_names import grows
from client_lib.spec.states import FINAL

app = CommandApp()
_PAUSE_S = 1.0
_SHOWN = 1000
"""Points of a curve on the terminal."""
_WRITTEN = 10_000_000
"""Points of a curve that is written as data."""
_OF_RANK_0 = {"rank": "0", "points": str(_SHOWN)}


def _rank(text: str) -> str:
    if text not in ("all", "workers") and not text.isdecimal():
        raise typer.BadParameter(f"{text!r} is neither a rank nor `all` or `workers`")
    return text


@app.command(
    examples="""
  client-lib metrics train-x7k2m
  client-lib metrics train --watch               until the job has ended
  client-lib metrics train-x7k2m -o csv > curves.csv
  client-lib metrics train-x7k2m --rank workers  CPU cores, memory and GPUs in use
  client-lib metrics train-x7k2m --rank all -o json | jq '.curves[] | {name, rank}'
"""
)
def metrics(
    ctx: typer.Context,
    connection: Connection,
    name: JobOrNewest = None,
    watch: Annotated[
        bool,
        Option(
            "--watch",
            "-w",
            help="Print the metrics again whenever they change, until the job ends.",
        ),
    ] = False,
    rank: Annotated[
        Any,
        Option(
            parser=_rank,
            metavar="N",
            help="Metrics of this rank, of `all` ranks, or what the `workers` use.",
        ),
    ] = "0",
    output: Annotated[
        Literal["text", "json", "csv"], Option("-o", "--output", help="Format of the output.")
    ] = "text",
) -> None:
    """Show the losses and other metrics of a job: the curve, the last and the best value of each.

    The values are read from the lines that the job prints and from files of TensorBoard and
    Lightning; the script needs no change. BEST is the smallest loss or error, or the largest
    accuracy or score; it is empty for other metrics.
    """
    if watch and output != "text":
        ctx.fail("--watch prints text; leave out -o")
    job = connection.job(name)
    params = {"rank": rank, "points": str(_SHOWN if output == "text" else _WRITTEN)}
    fetch = partial(connection.rest.read, paths.job(job["name"], "metrics"), "curves", params)
    found = fetch()
    if output == "json":
        printer.data_json(found)
    elif output == "csv":
        csv.writer(sys.stdout, lineterminator="\n").writerows(curves.csv_rows(found))
        for reason in curves.missing(found):
            printer.hint(reason)
    else:
        _print(found)
    while watch and job["state"] not in FINAL:
        time.sleep(_PAUSE_S)
        job = connection.job(job["name"])
        before = found
        found = fetch()
        if found != before:
            if sys.stdout.isatty():
                sys.stdout.write("\x1b[H\x1b[J")  # clears the screen
            _print(found)


@app.command(
    examples="""
  client-lib checkpoints train-x7k2m
  client-lib checkpoints train -o json | jq -r '.[-1].path'     the newest step
"""
)
def checkpoints(
    connection: Connection, name: JobOrNewest = None, output: TableOrJson = "table"
) -> None:
    """List the checkpoints of a job: step, format, size, and whether each is complete.

    They are recognised by their format, below the job's directory for checkpoints and its working
    directory: files of PyTorch and safetensors, folders of torch.distributed, Hugging Face and
    DeepSpeed. Sizes, headers and file names are read; nothing is unpickled.
    """
    from client_lib.reports import checkpoints as report

    job = connection.job(name)
    found = connection.api.job_checkpoints(job["name"])
    if output == "json":
        printer.data_json([each.model_dump(mode="json") for each in found])
        return
    if not found:
        printer.hint(report.NONE)
        return
    now = datetime.now(timezone.utc)
    printer.table([column.upper() for column in report.COLUMNS], report.rows(found, now))
    for problem in report.problems(found):
        printer.hint(problem)


@app.command(
    examples="""
  client-lib best lr-scan --by val_loss
  client-lib best lr-scan first-try --by accuracy -o json | jq -r '.[0].name'
"""
)
def best(
    connection: Connection,
    names: WholeNames,
    by: Annotated[
        str, Option(metavar="METRIC", help="Name of the metric, as in `client-lib metrics`.")
    ],
    largest: Annotated[
        bool | None,
        Option(
            "--max/--min",
            help="Which value is the best. Default: chosen by the metric's name, as in `metrics`.",
        ),
    ] = None,
    output: TextOrJson = "text",
) -> None:
    """Rank jobs, or the members of groups, by the best value of a metric of rank 0."""
    ranked = curves.ranked(_measured(connection, names), by, largest)
    if output == "json":
        printer.data_json(ranked)
    else:
        printer.table(curves.RANKING, curves.ranking(ranked), cut=("SCRIPT",))
    if largest is None and grows(by) is None:
        printer.hint(f"the smallest {by} counts as the best; use --max if the largest does")


@app.command(
    examples="""
  client-lib compare train-x7k2m train-p4c9d
  client-lib compare lr-scan first-try           the members of a group, and a job
  client-lib compare lr-scan -o csv > runs.csv
"""
)
def compare(connection: Connection, names: WholeNames, output: TableJsonOrCsv = "table") -> None:
    """Show jobs, or the members of groups, beside each other: arguments that differ, last and best
    values of metrics.

    The metrics are rank 0's. A metric has no best value if its name, such as lr, does not tell
    which value is better. `client-lib diff A B` shows all differences between two jobs.
    """
    found = curves.compared(_measured(connection, names))
    headings, *rows = curves.compared_rows(found, exact=output == "csv")
    if output == "json":
        printer.data_json(found)
    elif output == "csv":
        csv.writer(sys.stdout, lineterminator="\n").writerows([headings, *rows])
    else:
        printer.table(headings, rows)
    if len(found) == 1:
        printer.hint(
            f"{found[0]['name']} is one job: name others to see in which arguments they differ"
        )
    elif not any(job["arguments"] for job in found):
        printer.hint(
            "their arguments are the same; `client-lib diff A B` compares code, packages and "
            "hardware, too"
        )
    if not any(job["metrics"] for job in found):
        printer.hint("none of them has printed metrics so far")


def _measured(connection: Connection, names: list[str]) -> list[tuple[Json, list[Json]]]:
    """The jobs, and the members of groups in the place of these, each once, with their curves of
    rank 0: none, and a hint with the reason, if the server refuses to show them."""
    jobs = {
        job["name"]: job
        for name in names
        for job in connection.members(name) or [connection.job(name)]
    }
    found = []
    for name, job in jobs.items():
        of_job: list[Json] = []
        try:
            of_job = connection.rest.read(paths.job(name, "metrics"), "curves", _OF_RANK_0)[
                "curves"
            ]
        except (Conflict, Forbidden) as refused:
            printer.hint(refused.message)
        found.append((job, of_job))
    return found


def _print(found: dict[str, Any]) -> None:
    if not found["curves"]:
        printer.hint(
            f"{found['job']} has no values here so far; metrics are printed numbers like `step 3 "
            "loss=0.12`"
        )
    else:
        printer.table(curves.HEADINGS, curves.rows(found), cut=("CURVE",))
    printer.lines(curves.facts(found))
    sys.stdout.flush()


@app.command(
    examples="""
  client-lib download train-x7k2m                       into the folder train-x7k2m
  client-lib download train-x7k2m out --pattern '*.pt'
  client-lib download train-x7k2m --list
  client-lib download train-x7k2m --checkpoint last
  client-lib download train-x7k2m --checkpoint best:val_loss

\b
Files that are there already are not fetched again; repeat an interrupted download to finish it.
An interrupted download of a checkpoint starts from the beginning: first move away the files and
folders of its step that are complete.
"""
)
def download(
    ctx: typer.Context,
    connection: Connection,
    name: JobName,
    folder: Annotated[
        str | None, Argument(metavar="[DIR]", help="A folder. Default: ./NAME.")
    ] = None,
    pattern: Annotated[
        str | None,
        Option(metavar="GLOB", help="Only files that match: `*.pt`, `out/**`. Default: all."),
    ] = None,
    listed: Annotated[
        bool, Option("--list", help="Show what there is, and fetch nothing.")
    ] = False,
    checkpoint: Annotated[
        str | None,
        Option(
            metavar="WHICH",
            help="A checkpoint in place of the outputs: `best`, `best:METRIC`, `last`, or a step.",
        ),
    ] = None,
    output: TextOrJson = "text",
) -> None:
    """Fetch the files that a job has written, or one of its checkpoints; also while it runs."""
    from client_lib.client import get_job
    from client_lib.transport import download as downloads

    if checkpoint is not None and (pattern or listed):
        ctx.fail("--checkpoint stands alone; `client-lib checkpoints` lists what there is")
    full = connection.job(name)["name"]
    if not listed:
        with printer.transfer(full) as show_progress:
            files = get_job(full, client=connection.api).download(
                folder, pattern, checkpoint=checkpoint, on_download=show_progress
            )
        if output == "json":
            printer.data_json([str(file) for file in files])
        else:
            printer.lines(map(str, files))
            if files:
                printer.hint(f"{len(files)} files of {full}")
        return
    kept = connection.api.job_outputs(full)
    chosen = downloads.chosen(kept, pattern)
    if output == "json":
        printer.data_json([file.model_dump(mode="json") for file in chosen])
    elif chosen:
        rows = [
            (file.path, f"{file.size:,}", f"{file.modified_at:%Y-%m-%d %H:%M:%S}")
            for file in chosen
        ]
        printer.table(("file", "bytes", "written (UTC)"), rows)
    else:
        printer.hint(downloads.why_none(connection.api.job_info(full), kept, pattern))
    for left in kept.left_out:
        printer.hint(
            f"not kept: {left.path} of worker {left.worker} ({left.size:,} bytes): {left.why}"
        )


@app.command(
    examples="""
  client-lib code train-x7k2m                    into the folder train-x7k2m-code
  client-lib code train-x7k2m /tmp/then
"""
)
def code(
    connection: Connection,
    name: JobName,
    folder: Annotated[
        str | None, Argument(metavar="[DIR]", help="A new folder. Default: NAME-code.")
    ] = None,
) -> None:
    """Fetch the code that a job ran: the files of its snapshot, or of a job in
    place the commit and a patch.
    """
    from client_lib.client import get_job

    full = connection.job(name)["name"]
    printer.data(get_job(full, client=connection.api).code(folder or f"{full}-code"))


@app.command(
    examples="""
  client-lib diff train-x7k2m train-p4c9d
  client-lib diff train-x7k2m train-p4c9d -o json | jq .parts.packages
"""
)
def diff(
    connection: Connection, name: JobName, other: JobName, output: TextOrJson = "text"
) -> None:
    """Show what differs between two jobs: code, arguments, variables, packages, hardware, last and
    best metrics.

    Of jobs in place the uncommitted changes are compared. What was recorded of one job alone is
    left out.
    """
    from client_lib.client import get_job

    first, second = (
        get_job(connection.job(each)["name"], client=connection.api) for each in (name, other)
    )
    found = first.diff(second)
    if output == "json":
        printer.data_json(found._asdict())
    else:
        printer.lines(str(found).splitlines())
