"""`client-lib logs`."""

from __future__ import annotations

import json
import sys
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from client_lib import visible_text
from client_lib.cli import printer
from client_lib.cli.connection import Connection, Json
from client_lib.cli.parameters import Collapse, CommandApp, NamesOrNewest, TextJsonOrRaw
from client_lib.errors import InvalidRequest
from client_lib.log_reading.reader import (
    LogEntry,
    log_entries,
    log_params,
    raw_lines,
    whole_entries,
)
from client_lib.log_reading.text_output import LogOutput, OpenLogs, several_ranks, waits_for
from client_lib.reports import table
from client_lib.spec.states import State

if TYPE_CHECKING:
    from client_lib.log_reading.divergence import Divergence

app = CommandApp()


@app.command(
    examples="""
  client-lib logs -f train-x7k2m
  client-lib logs -n 100 --rank 0 --stream stderr train-x7k2m
  client-lib logs --since 10m --timestamps train-x7k2m
  client-lib logs -f --collapse train-x7k2m      [0-7] epoch 1, once for all ranks that print it
  client-lib logs --grep 'loss.*nan' -C 3 first second
  client-lib logs --diverge train-x7k2m          the first line in which the ranks differ
  client-lib logs -o json train-x7k2m            a JSON object per line
  client-lib logs -o raw --rank 0 train-x7k2m | jq .loss
"""
)
def logs(
    ctx: typer.Context,
    connection: Connection,
    names: NamesOrNewest = None,
    follow: Annotated[
        bool,
        Option("-f", "--follow", help="Go on until the job has ended; while it waits, print why."),
    ] = False,
    tail: Annotated[
        int | None, Option("-n", "--tail", min=0, metavar="LINES", help="Only the last lines.")
    ] = None,
    since: Annotated[
        str | None,
        Option(
            metavar="TIME",
            help="Only lines after this time: 10m, 2h, or a time as in 2026-11-21T10:00:00Z.",
        ),
    ] = None,
    ranks: Annotated[
        list[int] | None,
        Option("--rank", min=0, metavar="RANK", help="Only this rank; may be repeated."),
    ] = None,
    streams: Annotated[
        list[str] | None,
        Option("--stream", metavar="NAME", help="stdout, stderr or train.log; may be repeated."),
    ] = None,
    attempt: Annotated[
        int | None,
        Option(min=1, metavar="NUMBER", help="Only this attempt. Default: all, in order."),
    ] = None,
    grep: Annotated[
        str | None,
        Option(
            metavar="RE",
            help="Only lines that match this regular expression (Python's `re`); the server "
            "searches.",
        ),
    ] = None,
    context: Annotated[
        int | None,
        Option(
            "-C",
            "--context",
            min=0,
            metavar="LINES",
            help="With --grep: also this many lines of the same rank around each match.",
        ),
    ] = None,
    diverge: Annotated[
        bool,
        Option(
            "--diverge",
            help="Instead of the log: the first line in which ranks differ, other than in numbers. "
            "Lines that rank 0 alone prints are left out.",
        ),
    ] = False,
    timestamps: Annotated[
        bool, Option("--timestamps", help="Print the time of each line before it.")
    ] = False,
    collapse: Collapse = False,
    output: TextJsonOrRaw = "text",
) -> None:
    """Print the lines that the ranks of a job print, and write to train.log.

    Without -f: the lines that there are now. Ctrl-C stops following; the job keeps running.

    A terminal gets colours, and no other control of the terminal; a pipe or file gets whole lines
    as they were written, also of megabytes. -o raw prints the bytes of the lines alone, without
    [rank].
    """
    if collapse and output != "text":
        ctx.fail(f"--collapse is for text; with -o {output} each line stands for itself")
    if timestamps and output == "raw":
        ctx.fail("--timestamps is for text: -o raw prints what the job wrote, and nothing else")
    if diverge and output == "raw":
        ctx.fail("--diverge takes -o text or -o json")
    if diverge and any([follow, collapse, timestamps, tail is not None, since, grep]):
        ctx.fail("--diverge takes no other options than --rank, --stream, --attempt and -o")
    if context is not None and grep is None:
        ctx.fail("-C needs --grep: it shows the lines around each match")
    names = connection.each_member(names)
    if follow and (grep or len(names) > 1):
        ctx.fail(
            "-f takes no --grep"
            if grep
            else f"-f follows one job, and these are {len(names)}: name one of them"
        )
    params = log_params(
        follow=follow,
        tail=tail,
        since=since,
        rank=ranks,
        stream=streams,
        attempt=attempt,
        grep=grep,
        context=context,
    )
    wanted: list[str | None] = [*names] or [None]
    for name in wanted:
        found = connection.job(name)
        if len(names) > 1 and output == "text":
            printer.data_at_once(f"==> {found['name']} <==")
        more = {"job": found["name"]} if len(names) > 1 else {}
        open_logs = partial(connection.rest.open_logs, found["name"])
        retry_s = connection.config.patience_s()
        with printer.hint_on_interrupt(found["name"]):
            if found["state"] == State.PENDING and not follow:
                printer.hint(
                    f"{found['name']} is PENDING: {table.why(found)}; -f waits for its lines"
                )
            elif diverge:
                _print_divergence(
                    found, open_logs, params, retry_s, None if output != "json" else more
                )
            elif output == "json":
                write = printer.data_at_once if follow else printer.data
                for entry in whole_entries(log_entries(open_logs, params, retry_s=retry_s)):
                    write(_as_json(entry, more))
            elif output == "raw":
                for line in raw_lines(open_logs, params, retry_s=retry_s):
                    printer.data_bytes(line, at_once=follow)
            else:
                prefix = len(ranks or ()) != 1 and several_ranks(found["spec"])
                log = LogOutput(
                    found["name"], sys.stdout, prefix, timestamps, retry_s, collapse=collapse
                )
                if params.keys() == {"follow"}:
                    started_at = found.get("started_at")
                    log.waits_for = waits_for(
                        found["spec"], table.time(started_at) if started_at else None
                    )
                for notice in found.get("notices", []):
                    printer.hint(notice)
                log.write(open_logs, params)


def _print_divergence(
    job: Json,
    open_logs: OpenLogs,
    params: dict[str, Any],
    retry_s: float,
    more: dict[str, str] | None,
) -> None:
    """`more`: facts to put into each object of JSON; None: print text."""
    from client_lib.log_reading import divergence

    ranks = [int(rank) for rank in params.get("rank", ())]
    if len(ranks) == 1 or not several_ranks(job["spec"]):
        raise InvalidRequest(f"job {job['name']} has one rank; --diverge compares several")
    params = {"attempt": str(job["attempt"]), **params}
    with printer.progress(f"comparing the ranks of {job['name']}"):
        found = divergence.find(
            lambda: log_entries(open_logs, params, retry_s=retry_s),
            ranks or range(prod(table.workers_and_processes(job))),
        )
    if not found:
        printer.hint(f"all ranks of {job['name']} print the same lines")
    for place in found:
        if more is None:
            printer.lines(divergence.as_text(place))
        else:
            printer.data(_as_json(place, more))


def _as_json(entry: LogEntry | Divergence, more: dict[str, str]) -> str:
    """One object; the time as RFC 3339 in UTC, to the microsecond."""
    stamp = entry.time.isoformat(timespec="microseconds").replace("+00:00", "Z")
    text = json.dumps({**more, **entry._asdict(), "time": stamp}, ensure_ascii=False)
    return visible_text.in_json(text)
