"""`client-lib logs`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from client_lib.cli import following, printer, show
from client_lib.cli.connection import Connection
from client_lib.cli.parameters import JSON, collapse, connected, job_name, output
from client_lib.spec.states import State

if TYPE_CHECKING:
    from client_lib.job import Job
    from client_lib.log_reader import LogEntry

TEXT = "text"


@click.command(
    "logs",
    epilog="""\b
Examples:
  client-lib logs -f train-x7k2m
  client-lib logs -n 100 --rank 0 --stream stderr train-x7k2m
  client-lib logs --since 10m --timestamps train-x7k2m
  client-lib logs -f --collapse train-x7k2m      [0-7] epoch 1, once for all ranks that print it
  client-lib logs -o json train-x7k2m            a JSON object per line
""",
)
@job_name
@click.option("-f", "--follow", is_flag=True, help="Go on until the job has ended; while it waits, say why.")
@click.option("-n", "--tail", type=click.IntRange(min=0), metavar="LINES", help="Only the last lines.")
@click.option("--since", metavar="TIME", help="Only lines after that: 10m, 2h, or a time as in 2026-11-21T10:00:00Z.")
@click.option(
    "--rank",
    "ranks",
    type=click.IntRange(min=0),
    metavar="RANK",
    multiple=True,
    help="Only this rank; may be repeated.",
)
@click.option(
    "--stream", "streams", metavar="NAME", multiple=True, help="stdout, stderr or train.log; may be repeated."
)
@click.option(
    "--attempt", type=click.IntRange(min=1), metavar="NUMBER", help="Only this attempt. Default: all, in order."
)
@click.option("--timestamps", is_flag=True, help="When each line was written, in front of it.")
@collapse()
@output(TEXT, JSON)
@connected
def command(
    connection: Connection,
    name: str,
    follow: bool,
    tail: int | None,
    since: str | None,
    ranks: tuple[int, ...],
    streams: tuple[str, ...],
    attempt: int | None,
    timestamps: bool,
    collapse: bool,
    output: str,
) -> None:
    """What the ranks of a job print, and write to train.log.

    Without -f: what there is until now. Ctrl-C ends the look, never the job.
    """
    if collapse and output == JSON:
        raise click.UsageError("--collapse is for text; with -o json each line is an object of its own")
    found = connection.job(name)
    if found["state"] == State.PENDING and not follow:
        printer.hint(f"{found['name']} is PENDING: {show.why(found)}; -f waits for its lines")
        return
    job = connection.client.get_job(found["name"])
    filters: dict[str, Any] = {"tail": tail, "since": since, "stream": streams or None, "attempt": attempt}
    if output == JSON:
        _print_json(job, follow=follow, rank=ranks or None, **filters)
    else:
        rank = ranks[0] if len(ranks) == 1 else ranks or None  # lines of one rank carry no prefix
        job.logs(follow=follow, rank=rank, timestamps=timestamps, collapse=collapse, **filters)


def _print_json(job: Job, follow: bool, **filters: Any) -> None:
    from client_lib.log_reader import settled_entries

    write = printer.data_at_once if follow else printer.data
    with following.goes_on(job):
        for entry in settled_entries(job.log_entries(follow=follow, **filters)):
            write(_as_json(entry))


def _as_json(entry: LogEntry) -> str:
    """One object; the time as RFC 3339 in UTC, to the microsecond."""
    stamp = entry.time.isoformat(timespec="microseconds").replace("+00:00", "Z")
    return json.dumps({**entry._asdict(), "time": stamp}, ensure_ascii=False)
