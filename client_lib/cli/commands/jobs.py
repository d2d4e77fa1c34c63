"""`client-lib list`, `wait`, `cancel`, `delete` and `prune`: several jobs at a time."""

import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from typing import Annotated, Any, Literal

import typer
from typer import Option

from client_lib.cli import printer
from client_lib.cli.asking import agreed, has_terminal
from client_lib.cli.connection import Connection
from client_lib.cli.parameters import (
    CommandApp,
    GroupOrAll,
    JobOrAll,
    NamesOrNewest,
    WholeNames,
    WholeNamesOrNewest,
    key_value,
)
from client_lib.cli.program import ExitCode
from client_lib.errors import ClientLibError, InvalidRequest, JobEnded, NotFound
from client_lib.reports import table
from client_lib.spec.states import FINAL, State

_NEVER = datetime.max.replace(tzinfo=timezone.utc)

app = CommandApp()


def _column(name: str) -> str:
    heading = name.strip().upper()
    if heading not in table.COLUMNS:
        raise typer.BadParameter(
            f"there is no column {name!r}; there are {', '.join(table.COLUMNS).lower()}"
        )
    return heading


def _columns(text: str) -> list[str]:
    """`name,state` -> their headings."""
    return [_column(name) for name in text.split(",")]


def _order(text: str) -> tuple[str, bool]:
    """`-took` -> its heading, True: descending."""
    return _column(text.removeprefix("-")), text.startswith("-")


@app.command(
    "list",
    examples="""
  client-lib list --state RUNNING
  client-lib list -l team=vision --name train -o name
  client-lib list lr-scan                        the members of a group
  client-lib list --sort -took --columns name,took,script
  client-lib list --all -o json | jq '.[].name'
""",
)
def list_jobs(
    connection: Connection,
    group: GroupOrAll = None,
    state: Annotated[
        State | None, Option(case_sensitive=False, help="Only jobs in this state.")
    ] = None,
    labels: Annotated[
        list[Any] | None,  # pairs of key and value
        Option(
            "-l",
            "--label",
            parser=key_value,
            metavar="KEY=VALUE",
            help="Only jobs with this label.",
        ),
    ] = None,
    name: Annotated[
        str | None, Option(metavar="PREFIX", help="Only jobs whose name begins with PREFIX.")
    ] = None,
    limit: Annotated[int, Option("-n", "--limit", min=1, help="Show at most this many.")] = 50,
    everything: Annotated[bool, Option("--all", help="All of them, however many.")] = False,
    sort: Annotated[
        Any,
        Option(
            parser=_order, metavar="COLUMN", help="Sort what is shown; -COLUMN: the largest first."
        ),
    ] = None,
    columns: Annotated[
        Any,
        Option(
            parser=_columns,
            metavar="A,B",
            help="Only these columns: " + ", ".join(table.COLUMNS).lower(),
        ),
    ] = None,
    output: Annotated[
        Literal["table", "wide", "json", "name"],
        Option("-o", "--output", help="Format of the output; wide: more columns, nothing cut off."),
    ] = "table",
) -> None:
    """List your jobs, newest first, one line each; a group is one line, unless --state, -l or -o
    asks for jobs.

    TOOK is the running time, SIZE the number of workers x processes of each. WHY is the reason why
    a job waits, hangs or failed, or what of it deserves attention; for other running jobs it is
    the progress, if known.
    """
    most = None if everything else limit
    asked: dict[str, Any] = {
        "limit": most,
        "state": state,
        "name": name,
        "labels": dict(labels or ()),
        "group": group,
    }
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
    if output == "json":
        printer.data_json(jobs)
    elif output == "name":
        printer.lines(job["name"] for job in jobs)
    elif jobs:
        wide = output == "wide"
        chosen = columns or (table.WIDE if wide else table.USUAL)
        printer.table(chosen, table.rows(jobs, now, chosen), cut=table.CUT, whole=wide)
    else:
        printer.hint(
            "no jobs"
            + (
                " like that"
                if state or labels or name
                else "; `client-lib submit SCRIPT` starts one"
            )
        )
    if len(jobs) == most:
        printer.hint(f"these are the newest {most}; --all shows all")


@app.command(
    examples="""
  client-lib cancel train-x7k2m
  client-lib cancel                              the newest job, after a question
  client-lib list --state PENDING -o name | xargs client-lib cancel
  client-lib cancel lr-scan                      all members of a group
"""
)
def cancel(connection: Connection, names: WholeNamesOrNewest = None) -> int:
    """Stop jobs: SIGTERM, and SIGKILL after the grace period. Their logs stay."""

    def cancel_one(name: str) -> None:
        api = connection.api
        info = api.cancel_group(name) if connection.group(name) else api.cancel_job(name)
        printer.data(f"{info.name} {info.state if info.state.final else 'is being stopped'}")
        if not info.state.final:
            printer.hint(f"`client-lib wait {name}` waits until its processes have ended")

    if not names:
        newest = connection.newest()
        question = f"cancel the newest job, {newest['name']} ({newest['state']})?"
        names = [newest["name"]] if agreed(question, f"client-lib cancel {newest['name']}") else []
    return _change_each(connection, names, cancel_one)


@app.command(
    examples="""
  client-lib delete train-x7k2m
  client-lib list --all --state FAILED -o name | xargs client-lib delete
"""
)
def delete(
    connection: Connection,
    names: WholeNames,
    force: Annotated[
        bool, Option("--force", help="Also one that runs: it is stopped first.")
    ] = False,
) -> int:
    """Remove jobs that have ended, and their logs."""
    every = connection.each_member(names)
    return _change_each(
        connection, every, lambda name: printer.data(connection.api.delete_job(name, force=force))
    )


def _age(text: str) -> timedelta:
    """`7d`, `12h`, `30m` or `45s`."""
    units = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
    number = text[:-1]
    unit = text[-1:]
    if not number.isdecimal() or unit not in units or len(number) > 5:
        raise typer.BadParameter(f"{text!r} is no age like 30m, 12h or 7d")
    return timedelta(**{units[unit]: int(number)})


@app.command(
    examples="""
  client-lib prune --dry-run
  client-lib prune --older 12h --state SUCCEEDED --yes
  client-lib prune train-x7k2m --checkpoints --keep 3
"""
)
def prune(
    ctx: typer.Context,
    connection: Connection,
    name: JobOrAll = None,
    older: Annotated[
        Any,
        Option(
            parser=_age,
            metavar="AGE",
            help="Only jobs that ended at least this time ago: 30m, 12h, 7d.",
        ),
    ] = "7d",
    state: Annotated[
        Literal["SUCCEEDED", "FAILED", "CANCELLED"] | None,
        Option(case_sensitive=False, help="Only jobs that ended in this state."),
    ] = None,
    checkpoints: Annotated[
        bool,
        Option("--checkpoints", help="Remove checkpoints of job NAME, which may run, not jobs."),
    ] = False,
    keep: Annotated[
        int | None,
        Option(min=1, metavar="N", help="Keep the checkpoints of the last N steps."),
    ] = None,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Print what would be removed, and remove nothing.")
    ] = False,
    yes: Annotated[bool, Option("-y", "--yes", help="Don't ask.")] = False,
) -> int:
    """Remove your jobs that ended some time ago, with their logs and files; or early checkpoints of
    one job.

    Of the checkpoints, complete ones of earlier steps go. What has no step, what a pointer such as
    `latest` names, and what a process has open stays.
    """
    if checkpoints != (name is not None) or checkpoints != (keep is not None):
        ctx.fail(
            "NAME, --checkpoints and --keep belong together: prune NAME --checkpoints --keep 3"
        )
    if name is not None and keep is not None:
        source = ctx.get_parameter_source("older")
        if state is not None or (source and source.name != "DEFAULT"):
            ctx.fail("--older and --state choose jobs, not checkpoints: leave them out")
        full = connection.job(name)["name"]
        return _prune_checkpoints(connection, full, keep, dry_run=dry_run, yes=yes)
    latest = datetime.now(timezone.utc) - older
    jobs = connection.jobs(limit=None, state=state)
    names = [
        job["name"]
        for job in jobs
        if job["state"] in FINAL and table.time(job["finished_at"]) <= latest
    ]
    number = "1 job" if len(names) == 1 else f"{len(names)} jobs"
    if not names:
        printer.hint("no job has ended before that time")
    elif dry_run:
        printer.lines(names)
    elif yes or agreed(
        f"remove {number} with their logs and files?", "add --yes to the same command"
    ):
        return _change_each(
            connection, names, lambda name: printer.data(connection.api.delete_job(name))
        )
    return ExitCode.DONE


def _prune_checkpoints(
    connection: Connection, name: str, keep: int, *, dry_run: bool, yes: bool
) -> int:
    """Show the early checkpoints of a job, ask, and remove what was shown."""
    from client_lib.reports import checkpoints as report

    found = connection.api.prune_checkpoints(name, keep)
    for path, why in found.stays.items():
        printer.hint(f"{path} stays: {why}")
    if not found.checkpoints:
        printer.hint(f"job {name} has no earlier checkpoints to remove")
        return ExitCode.DONE
    printer.table(report.EARLY, report.early_rows(found.checkpoints))
    question = f"remove {report.amount(found.checkpoints)}?"
    if dry_run or not (yes or agreed(question, "add --yes to the same command")):
        return ExitCode.DONE
    shown = [each.path for each in found.checkpoints]
    done = connection.api.prune_checkpoints(name, keep, shown)
    for path, why in done.stays.items():
        printer.hint(f"{path} stays: {why}")
    printer.hint(f"removed {report.amount(done.checkpoints)}")
    return ExitCode.FAILED if done.stays else ExitCode.DONE


def _change_each(
    connection: Connection, names: Sequence[str], change: Callable[[str], None]
) -> int:
    """Call `change` for each job, also after an error of another; return the exit code of the first
    error. A job whose name was shortened is changed after a confirmation: it may be another than
    the intended one, which was deleted."""
    codes: list[int] = []
    for name in names:
        try:
            try:
                change(name)
            except NotFound:
                full = connection.full_name(name)
                if not has_terminal():
                    raise NotFound(
                        f"no job named {name}", hint=f"did you mean {full}? write the whole name"
                    ) from None
                if typer.confirm(f"no job named {name}; did you mean {full}?", err=True):
                    change(full)
        except ClientLibError as problem:
            printer.error(problem)
            codes.append(ExitCode.of_error(problem))
    return next(iter(codes), ExitCode.DONE)


@app.command(
    examples="""
  client-lib wait train-x7k2m && client-lib submit evaluate.py
  client-lib wait --timeout 600 a-job another-job
  client-lib wait lr-scan                        all members of a group

\b
Exit code:
  0 all SUCCEEDED; else that of the first that ended otherwise: 1 FAILED, 3 CANCELLED,
  124 the time is over
"""
)
def wait(
    connection: Connection,
    names: NamesOrNewest = None,
    timeout_s: Annotated[
        float | None,
        Option("--timeout", min=0, metavar="SECONDS", help="For all of them. Default: no limit."),
    ] = None,
) -> int:
    """Wait until jobs have ended, and print how each ended.

    Ctrl-C stops waiting; the jobs keep running."""
    return wait_for_all(connection, connection.each_member(names) or [None], timeout_s)


def wait_for_all(
    connection: Connection, wanted: Sequence[str | None], timeout_s: float | None = None
) -> int:
    """The exit code of the job that was the first to end without success; 0: all succeeded. None:
    the newest job. An error of the wait itself counts after all ends of jobs."""
    from client_lib.client import get_job

    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    failed: list[tuple[datetime, int]] = []
    for name in wanted:
        left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            job = get_job(connection.job(name)["name"], client=connection.api)
            with (
                printer.hint_on_interrupt(job.name or ""),
                printer.progress(f"waiting for {job.name}"),
            ):
                info = job.wait(left_s)
        except ClientLibError as problem:
            printer.error(problem)
            ended_at = (
                problem.info.finished_at if isinstance(problem, JobEnded) and problem.info else None
            )
            failed.append((ended_at or _NEVER, ExitCode.of_error(problem)))
        else:
            last_line = table.end(info.model_dump(mode="json"), str(info.state))
            printer.end(last_line, sys.stdout, deserves_attention=bool(info.attention))
    return min(failed, key=lambda end: end[0], default=(_NEVER, ExitCode.DONE))[1]
