"""`client-lib download`."""

from __future__ import annotations

import click

from client_lib.cli import printer, progress_bar
from client_lib.cli.connection import Connection
from client_lib.cli.parameters import JSON, connected, job_name, output

TEXT = "text"


@click.command(
    "download",
    epilog="""\b
Examples:
  client-lib download train-x7k2m                       into the folder train-x7k2m
  client-lib download train-x7k2m out --pattern '*.pt'
  client-lib download train-x7k2m --list

\b
What is there already is not fetched again; a download that was cut goes on when it is repeated.
""",
)
@job_name
@click.argument("folder", metavar="[DIR]", required=False)
@click.option("--pattern", metavar="GLOB", help="Only these: `*.pt`, `out/**`. Default: all.")
@click.option("--list", "listed", is_flag=True, help="Show what there is, and fetch nothing.")
@output(TEXT, JSON)
@connected
def command(
    connection: Connection, name: str, folder: str | None, pattern: str | None, listed: bool, output: str
) -> None:
    """Fetch the files that a job has written; also while it runs."""
    full = connection.job(name)["name"]
    if listed:
        _show(connection, full, pattern, output)
        return
    with progress_bar.transfer(full) as tell:
        paths = connection.client.get_job(full).download(folder, pattern, on_download=tell)
    if output == JSON:
        printer.data_json([str(path) for path in paths])
    else:
        printer.lines(str(path) for path in paths)
        if paths:
            printer.hint(f"{len(paths)} files of {full}")


def _show(connection: Connection, name: str, pattern: str | None, output: str) -> None:
    from client_lib import download

    found = connection.client.job_outputs(name)
    files = download.chosen(found, pattern)
    if output == JSON:
        printer.data_json([file.model_dump(mode="json") for file in files])
    elif files:
        rows = [(file.path, f"{file.size:,}", f"{file.modified_at:%Y-%m-%d %H:%M:%S}") for file in files]
        printer.table(("file", "bytes", "written (UTC)"), rows)
    else:
        printer.hint(download.why_none(connection.client.job_info(name), found, pattern))
    for left in found.left_out:
        printer.hint(f"not kept: {left.path} of worker {left.worker} ({left.size:,} bytes): {left.why}")
