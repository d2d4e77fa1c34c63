"""`client-lib status`, `client-lib explain` and `client-lib stacks`: one job. Only
what needs pydantic loads it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated

from typer import Option

from client_lib.cli import printer
from client_lib.cli.connection import Connection
from client_lib.cli.parameters import (
    CommandApp,
    JobGroupOrNewest,
    JobOrNewest,
    TextJsonOrName,
    TextOrJson,
)
from client_lib.errors import Conflict, NotFound, NotSupported
from client_lib.launcher_protocol import frames
from client_lib.reports import table
from client_lib.reports.table import Json
from client_lib.spec import paths
from client_lib.spec.replace import replaced
from client_lib.spec.states import FINAL, State
from client_lib.spec.wording import duration, in_brackets

if TYPE_CHECKING:
    from client_lib.spec.stacks import JobStacks

app = CommandApp()


@app.command(
    examples="""
  client-lib status train-x7k2m
  client-lib status train --events               the only job whose name begins with `train`
  client-lib status train-x7k2m -o json | jq -r .state
"""
)
def status(
    connection: Connection,
    name: JobGroupOrNewest = None,
    events: Annotated[bool, Option("--events", help="Show the events of the job instead.")] = False,
    verbose: Annotated[
        bool, Option("--verbose", "-v", help="Also show what the time of the job was used for.")
    ] = False,
    output: TextJsonOrName = "text",
) -> None:
    """Show the state of a job, and its reason; of a failed job the report."""
    job = connection.job(name) if events else connection.job_or_group(name)
    if events:
        found = connection.rest.read(paths.job(job["name"], "events"), "events")["events"]
        if output == "json":
            printer.data_json(found)
        else:
            fields = ("time", "attempt", "state", "reason", "message")
            rows = [
                [table.stamp(event["time"]), *(str(event[field]) for field in fields[1:])]
                for event in found
            ]
            printer.table([field.upper() for field in fields], rows)
    elif output == "json":
        printer.data_json(job)
    elif output == "name":
        printer.data(job["name"])
    else:
        used = str(connection.api.job_goodput(job["name"])) if verbose and "told" not in job else ""
        printer.lines(job_lines(job, datetime.now(timezone.utc), used))
        if "told" in job:
            printer.hint(f"`client-lib list {job['name']}` shows its jobs")
        elif job["state"] == State.FAILED:
            from client_lib.spec.wire import JobInfo

            printer.data("")
            printer.failure(JobInfo.model_validate(job), sys.stdout)
            return
        follow = "" if "told" in job or job["state"] in FINAL else " -f"
        printer.advise(f"\n`client-lib logs {job['name']}{follow}` shows its output")


def job_lines(job: Json, now: datetime, used: str = "") -> list[str]:
    """The lines of `status` for one job, without the report of a failure. `used`:
    what its time was used for.
    """
    facts = [(name, text) for name, text in (*_facts(job, now), ("time", used)) if text]
    facts += [("notice", notice) for notice in job.get("notices", [])]
    width = max(len(name) for name, _ in facts)
    lines = [f"{name:<{width}}  {text}" for name, text in facts]
    workers = job.get("workers", [])
    if len(workers) > 1 or any(worker.get("message") for worker in workers):
        lines += ["", "workers:"]
        for worker in workers:
            exit_code = worker.get("exit_code")
            ended = "" if exit_code is None else f"exit code {exit_code}"
            parts = [
                str(worker["worker"]),
                worker["state"],
                ended,
                worker.get("host"),
                worker.get("message"),
            ]
            lines.append("  " + "  ".join(filter(None, parts)))
    return lines


def _facts(job: Json, now: datetime) -> Iterator[tuple[str, str]]:
    spec = job["spec"]
    code = job.get("code", {})
    known = [each.get("threads") for each in job.get("workers", [])]
    yield "name", job["name"]
    yield "state", table.state(job, now)
    why = table.why(job)
    yield "why", why
    yield from zip(("progress", "metrics"), table.progress_facts(job), strict=True)
    for hint in table.hints(job):
        yield "hint", "" if hint in why else hint
    yield "script", table.script(spec)
    yield "description", spec.get("job_desc") or ""
    size = (
        f"{spec.get('n_workers', 1)} x {spec.get('instance_type') or 'the default instance type'}"
    )
    processes = spec.get("processes_per_worker", "default")
    yield "workers", size if processes == "default" else f"{size}, {processes} processes each"
    if threads := next(filter(None, known), None):
        yield "threads", f"{threads} in every process (OMP_NUM_THREADS; --env sets another)"
    if code.get("mode") == "in_place":
        yield "code", "in place"
    elif code:
        files = "1 file" if code.get("files") == 1 else f"{code.get('files', '?')} files"
        yield "code", f"snapshot of {code.get('root', '?')} ({files})"
    yield "labels", table.labels(spec)
    for name in ("created", "started", "finished"):
        if at := job.get(f"{name}_at"):
            yield name, f"{table.stamp(at)}, {duration((now - table.time(at)).total_seconds())} ago"
    if job.get("attempt", 1) > 1:
        yield "attempt", f"{job['attempt']}{in_brackets(job.get('retry'))}"


@app.command(
    examples="""
  client-lib explain train-x7k2m
  watch client-lib explain train                 the only job whose name begins with `train`
  client-lib explain train-x7k2m -o json | jq -r .next[0]
"""
)
def explain(connection: Connection, name: JobOrNewest = None, output: TextOrJson = "text") -> None:
    """Explain why a job waits, or why it failed: the reason, what happened
    before, and the next step.
    """
    from client_lib.job import Job
    from client_lib.reports import explanation
    from client_lib.spec.wire import JobInfo

    job = connection.job(name)
    info = JobInfo.model_validate(job)
    changed = (
        Job.of(connection.api, info).changed_since_success() if info.state is State.FAILED else ""
    )
    events = connection.api.job_events(job["name"])
    now = datetime.now(timezone.utc)
    if output == "json":
        found = replaced(
            explanation.explained(info, events, now, explanation.SHELL), changed=changed
        )
        printer.data_json(found.model_dump(mode="json"))
    else:
        why = explanation.explain(info, events, now, explanation.SHELL)
        printer.report(
            [*why, *([explanation.Part("line", changed)] if changed else [])], sys.stdout
        )


@app.command(
    examples="""
  client-lib stacks train-x7k2m                  what all ranks do, the same stacks as one line
  client-lib stacks train-x7k2m --rank 3         all threads of rank 3 and of its children
  client-lib stacks train-x7k2m --rank 3 --native
  client-lib stacks train-x7k2m -o json | jq '.ranks[].processes[0].state'
"""
)
def stacks(
    connection: Connection,
    name: JobOrNewest = None,
    rank: Annotated[int | None, Option(min=0, help="Show every thread of this rank.")] = None,
    native: Annotated[
        bool,
        Option("--native", help="Show the functions of C, too, by py-spy, if the workers have it."),
    ] = False,
    output: TextOrJson = "text",
) -> None:
    """Show what a running job does: the functions in which its ranks are."""
    from client_lib.spec.stacks import details, groups

    job = connection.job(name)
    taken = connection.api.job_stacks(job["name"])
    if rank is not None:
        chosen = [each for each in taken.ranks if each.rank == rank]
        if not chosen:
            known = ", ".join(str(each.rank) for each in taken.ranks) or "none"
            raise NotFound(
                f"job {taken.job} has sent nothing of rank {rank}; ranks: {known}",
                hint="; ".join(taken.problems) or None,
            )
        taken = replaced(taken, ranks=chosen, problems=[])
    if native:
        _show_native(connection, taken, output, every=rank is not None)
    elif output == "json":
        printer.data_json(taken.model_dump(mode="json"))
    elif rank is not None:
        printer.lines(details(taken.ranks[0]))
    else:
        printer.lines(groups(taken.ranks))
        for problem in taken.problems:
            printer.hint(problem)
        printer.hint(f"\n`client-lib stacks {job['name']} --rank N` shows every thread of a rank")


# --- the stacks of a process, with its functions of C

PY_SPY = ("py-spy", "dump", "--native", "--pid")  # the id of the process follows


def _show_native(connection: Connection, taken: JobStacks, output: str, *, every: bool) -> None:
    """Show the stacks that py-spy takes of the ranks. `every`: of their children, too."""
    found = []
    for rank in taken.ranks:
        for process in rank.processes if every else rank.processes[:1]:
            stacks = _native_stacks(connection, taken.job, rank.rank, process.pid)
            found.append({"rank": rank.rank, "pid": process.pid, "native": stacks})
            if output != "json":
                printer.lines([f"rank {rank.rank}", *(f"  {line}" for line in stacks)])
    if output == "json":
        printer.data_json({"job": taken.job, "processes": found})


def _native_stacks(connection: Connection, job: str, rank: int, pid: int) -> list[str]:
    """The stacks of a process of a rank as py-spy prints them; it has to
    be installed in the worker.
    """
    from client_lib.cli.commands.sessions import Session

    output = bytearray()
    errors = bytearray()
    process = f"process {pid} of rank {rank}"
    session = Session(connection.rest, job, {"argv": [*PY_SPY, str(pid)], "rank": rank})
    session.send(frames.frame(frames.DATA))  # its stdin is empty
    try:
        code = session.run(
            lambda kind, data: (errors if kind == frames.ERRORS else output).extend(data)
        )
    except Conflict as problem:
        if not problem.message.startswith(f"{PY_SPY[0]}: "):
            raise
        raise NotSupported(
            f"there is no py-spy for {process}: --native needs it in the worker",
            hint="`pip install py-spy` in the job's environment or image; without --native nothing "
            "is needed",
        ) from problem
    check_py_spy(code, errors.decode(errors="replace"), process)
    return output.decode(errors="replace").splitlines()


def check_py_spy(code: int, errors: str, process: str) -> None:
    """`code`: exit code of py-spy; `errors`: its stderr. Raises NotSupported: it has no right to
    trace; Conflict: it failed."""
    if "permission denied" in errors.lower():
        raise NotSupported(
            f"py-spy may not trace {process}",
            hint="it needs the capability SYS_PTRACE in a pod, and kernel.yama.ptrace_scope=0 or "
            "root elsewhere; without --native no right is needed",
        )
    if code:
        raise Conflict(
            f"py-spy took no stacks of {process}: "
            f"{(errors.strip() or f'exit code {code}').splitlines()[0]}"
        )
