"""`client-lib status`, `client-lib explain` and `client-lib stacks`: one job. Only what needs pydantic loads it."""

from __future__ import annotations

import sys
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Any

import typer

from client_lib.cli import first_runs, printer, show
from client_lib.cli.connection import Connection
from client_lib.cli.parameters import JSON, NAME, CommandApp, JobGroupOrNewest, JobOrNewest, TextJsonOrName, TextOrJson
from client_lib.errors import NotFound
from client_lib.spec import paths
from client_lib.spec.states import FINAL, State

if TYPE_CHECKING:
    from client_lib.spec.stacks import JobStacks, RankStacks

app = CommandApp()


@app.command(
    epilog="""\b
Examples:
  client-lib status train-x7k2m
  client-lib status train --events               the only job whose name begins so
  client-lib status train-x7k2m -o json | jq -r .state
"""
)
def status(
    connection: Connection,
    name: JobGroupOrNewest = None,
    events: Annotated[bool, typer.Option("--events", help="Show what happened to it so far, instead.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show what its time was used for, too.")] = False,
    output: TextJsonOrName = "text",
) -> None:
    """Show the state of a job, and its reason; of a failed job the report."""
    job = connection.job(name) if events else connection.job_or_group(name)
    if events:
        _show_events(connection, job["name"], output)
    elif output == JSON:
        printer.data_json(job)
    elif output == NAME:
        printer.data(job["name"])
    else:
        used = str(connection.api.job_goodput(job["name"])) if verbose and "told" not in job else ""
        printer.lines(show.job_lines(job, datetime.now(timezone.utc), used))
        if "told" in job:
            printer.hint(f"`client-lib list {job['name']}` shows its jobs")
        elif job["state"] == State.FAILED:
            printer.data("")
            _print_report(job)
            return
        follow = "" if "told" in job or job["state"] in FINAL else " -f"
        first_runs.advise(f"\n`client-lib logs {job['name']}{follow}` shows its output")


def _print_report(job: dict[str, Any]) -> None:
    """Print the report that `wait` raises."""
    from client_lib.cli import report
    from client_lib.spec.wire import JobInfo

    report.write_failure(JobInfo.model_validate(job), sys.stdout)


def _show_events(connection: Connection, name: str, output: str) -> None:
    events = connection.items(paths.job(name, "events"), "events")
    if output == JSON:
        printer.data_json(events)
    else:
        printer.table(show.EVENT_COLUMNS, map(show.event_row, events))


@app.command(
    epilog="""\b
Examples:
  client-lib explain train-x7k2m
  watch client-lib explain train                 the only job whose name begins so
  client-lib explain train-x7k2m -o json | jq -r .next[0]
"""
)
def explain(connection: Connection, name: JobOrNewest = None, output: TextOrJson = "text") -> None:
    """Explain why a job waits, or why it failed: the reason, what happened before, and the next step."""
    from client_lib.cli import report
    from client_lib.job import Job
    from client_lib.reports import explanation
    from client_lib.spec.wire import EventList, JobInfo

    job = connection.job(name)
    info = JobInfo.model_validate(job)
    changed = Job.of(connection.api, info).changed_since_success() if info.state is State.FAILED else ""
    events = EventList.model_validate({"events": connection.items(paths.job(job["name"], "events"), "events")}).events
    now = datetime.now(timezone.utc)
    if output == JSON:
        found = explanation.explained(info, events, now, explanation.SHELL).model_copy(update={"changed": changed})
        printer.data_json(found.model_dump(mode="json"))
    else:
        why = explanation.explain(info, events, now, explanation.SHELL)
        report.write([*why, *([explanation.Part("line", changed)] if changed else [])], sys.stdout)


@app.command(
    epilog="""\b
Examples:
  client-lib stacks train-x7k2m                  what all ranks do, the same stacks as one line
  client-lib stacks train-x7k2m --rank 3         all threads of rank 3 and of its children
  client-lib stacks train-x7k2m --rank 3 --native
  client-lib stacks train-x7k2m -o json | jq '.ranks[].processes[0].state'
"""
)
def stacks(
    connection: Connection,
    name: JobOrNewest = None,
    rank: Annotated[int | None, typer.Option(min=0, help="Show every thread of this rank.")] = None,
    native: Annotated[
        bool, typer.Option("--native", help="Show the functions of C, too, by py-spy, if the workers have it.")
    ] = False,
    output: TextOrJson = "text",
) -> None:
    """Show what a running job does: the functions in which its ranks are."""
    from client_lib.spec.stacks import details, groups

    job = connection.job(name)
    taken = connection.api.job_stacks(job["name"])
    if rank is not None:
        taken = taken.model_copy(update={"ranks": [_chosen(taken, rank)], "problems": []})
    if native:
        _show_native(connection, taken, output, every=rank is not None)
    elif output == JSON:
        printer.data_json(taken.model_dump(mode="json"))
    elif rank is not None:
        printer.lines(details(taken.ranks[0]))
    else:
        printer.lines(groups(taken.ranks))
        for problem in taken.problems:
            printer.hint(problem)
        printer.hint(f"\n`client-lib stacks {job['name']} --rank N` shows every thread of a rank")


def _show_native(connection: Connection, taken: JobStacks, output: str, *, every: bool) -> None:
    """Show the stacks that py-spy takes of the ranks. `every`: of their children, too."""
    from client_lib.cli.session import native_stacks

    found = []
    for rank in taken.ranks:
        for process in rank.processes if every else rank.processes[:1]:
            stacks = native_stacks(connection.rest, taken.job, rank.rank, process.pid)
            found.append({"rank": rank.rank, "pid": process.pid, "native": stacks})
            if output != JSON:
                printer.lines([f"rank {rank.rank}", *(f"  {line}" for line in stacks)])
    if output == JSON:
        printer.data_json({"job": taken.job, "processes": found})


def _chosen(taken: JobStacks, number: int) -> RankStacks:
    found = next((rank for rank in taken.ranks if rank.rank == number), None)
    if found is None:
        known = ", ".join(str(rank.rank) for rank in taken.ranks) or "none"
        raise NotFound(
            f"job {taken.job} has sent nothing of rank {number}; ranks: {known}", hint="; ".join(taken.problems) or None
        )
    return found
