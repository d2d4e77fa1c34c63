"""`client-lib download`, `client-lib code` and `client-lib diff`: what a job wrote, and what it ran."""

from __future__ import annotations

from typing import Annotated

import typer

from client_lib.cli import printer
from client_lib.cli.connection import Connection
from client_lib.cli.parameters import JSON, CommandApp, JobName, TextOrJson

app = CommandApp()


@app.command(
    epilog="""\b
Examples:
  client-lib download train-x7k2m                       into the folder train-x7k2m
  client-lib download train-x7k2m out --pattern '*.pt'
  client-lib download train-x7k2m --list

\b
What is there already is not fetched again; a download that was cut goes on when it is repeated.
"""
)
def download(
    connection: Connection,
    name: JobName,
    folder: Annotated[str | None, typer.Argument(metavar="[DIR]", help="Default: one of the job's name, here.")] = None,
    pattern: Annotated[
        str | None, typer.Option(metavar="GLOB", help="Only these: `*.pt`, `out/**`. Default: all.")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="Show what there is, and fetch nothing.")] = False,
    output: TextOrJson = "text",
) -> None:
    """Fetch the files that a job has written; also while it runs."""
    from client_lib.client import get_job

    full = connection.job(name)["name"]
    if listed:
        _show(connection, full, pattern, output)
        return
    with printer.transfer(full) as show_progress:
        paths = get_job(full, client=connection.api).download(folder, pattern, on_download=show_progress)
    if output == JSON:
        printer.data_json([str(path) for path in paths])
    else:
        printer.lines(str(path) for path in paths)
        if paths:
            printer.hint(f"{len(paths)} files of {full}")


@app.command(
    epilog="""\b
Examples:
  client-lib code train-x7k2m                    into the folder train-x7k2m-code
  client-lib code train-x7k2m /tmp/then
"""
)
def code(
    connection: Connection,
    name: JobName,
    folder: Annotated[str | None, typer.Argument(metavar="[DIR]", help="A new folder. Default: NAME-code.")] = None,
) -> None:
    """Fetch the code that a job ran: the files of its snapshot, or of a job in place the commit and a patch."""
    from client_lib.client import get_job

    full = connection.job(name)["name"]
    printer.data(get_job(full, client=connection.api).code(folder or f"{full}-code"))


@app.command(
    epilog="""\b
Examples:
  client-lib diff train-x7k2m train-p4c9d
  client-lib diff train-x7k2m train-p4c9d -o json | jq .parts.packages
"""
)
def diff(connection: Connection, name: JobName, other: JobName, output: TextOrJson = "text") -> None:
    """Show what differs between two jobs: code, arguments, variables, packages, hardware, last and best metrics.

    Of jobs in place the uncommitted changes are compared. What was recorded of one job alone is left out.
    """
    from client_lib.client import get_job

    first, second = (get_job(connection.job(each)["name"], client=connection.api) for each in (name, other))
    found = first.diff(second)
    if output == JSON:
        printer.data_json(found._asdict())
    else:
        printer.lines(str(found).splitlines())


def _show(connection: Connection, name: str, pattern: str | None, output: str) -> None:
    from client_lib.transport import download as downloads

    found = connection.api.job_outputs(name)
    files = downloads.chosen(found, pattern)
    if output == JSON:
        printer.data_json([file.model_dump(mode="json") for file in files])
    elif files:
        rows = [(file.path, f"{file.size:,}", f"{file.modified_at:%Y-%m-%d %H:%M:%S}") for file in files]
        printer.table(("file", "bytes", "written (UTC)"), rows)
    else:
        printer.hint(downloads.why_none(connection.api.job_info(name), found, pattern))
    for left in found.left_out:
        printer.hint(f"not kept: {left.path} of worker {left.worker} ({left.size:,} bytes): {left.why}")
