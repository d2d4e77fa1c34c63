"""`client-lib submit`, `client-lib render` and `client-lib resubmit`."""

import os
import sys
import uuid
from datetime import datetime, timezone
from typing import Annotated, Any

import typer
from typer import Option

from client_lib import client
from client_lib.cli import job_options, printer, submit_steps
from client_lib.cli.commands import jobs
from client_lib.cli.connection import Connection
from client_lib.cli.job_options import ConfigOption, job_command
from client_lib.cli.parameters import (
    CollapseFollowed,
    Command,
    CommandApp,
    Follow,
    JobOrGroup,
    TextJsonOrName,
    YamlOrJson,
    key_value,
)
from client_lib.cli.program import ExitCode
from client_lib.cli.submit_steps import DescribedJob, NoCheck
from client_lib.job import Job
from client_lib.reports import table
from client_lib.spec.wire import JobInfo, Manifest
from client_lib.submit import sweep
from client_lib.submit.changes import with_arguments

_VIEW = """\
# A view of the objects that a submit creates. The values of secrets are masked, and binary files
# are shown by their size and digest: `kubectl apply` takes none of it; `client-lib submit` creates
# the real objects."""

app = CommandApp()


@job_command(
    app,
    examples="""
  client-lib submit train.py --epochs 3              --epochs is the script's own
  client-lib submit -f -N 2 -i a100.8gpu train.py    2 workers of 8 GPUs, followed
  client-lib submit -c job.yaml --name night-run     fields from a file, one changed
  client-lib submit -t binary -- ./measure.sh -v     any program
  client-lib submit torchrun --nnodes 2 --nproc-per-node 4 train.py --lr 0.1
  client-lib submit --group lr-scan --each lr=0.1,0.01 --each seed=0..4 --max-parallel 2 train.py
  client-lib submit --group lr-scan --each-file runs.csv train.py

\b
Exit code with -f:
  that of the job: 0 SUCCEEDED, 1 FAILED, 3 CANCELLED; 130 after Ctrl-C, and the job keeps running;
  of a group 0 if all SUCCEEDED, else that of the first that ended otherwise
""",
)
def submit(
    ctx: typer.Context,
    connection: Connection,
    config: ConfigOption = None,
    follow: Follow = False,
    collapse: CollapseFollowed = False,
    no_check: NoCheck = False,
    group: Annotated[
        str | None, Option(metavar="NAME", help="Name of the group (--each, --each-file).")
    ] = None,
    each: Annotated[
        list[Any] | None,
        Option(
            parser=key_value,
            metavar="NAME=VALUES",
            help="Submit one job for each value, as in lr=0.1,0.01 or seed=0..4. Several: for each "
            "combination. The value replaces {lr} in ARGS; if ARGS has no {lr}, --lr 0.1 is "
            "appended.",
        ),
    ] = None,
    each_file: Annotated[
        str | None,
        Option(
            metavar="FILE",
            help="Submit one job for each row of a CSV file, whose first line names the arguments, "
            "or for each object in a file FILE.jsonl. The values go into ARGS as those of "
            "--each.",
        ),
    ] = None,
    max_parallel: Annotated[
        int | None, Option(min=1, metavar="N", help="Most jobs of the group that run at a time.")
    ] = None,
    stop_on_failure: Annotated[
        bool,
        Option("--stop-on-failure", help="When a job of the group has FAILED, cancel the others."),
    ] = False,
    output: TextJsonOrName = "text",
    **values: Any,
) -> int:
    """Run SCRIPT as a job.

    Options of client-lib stand before SCRIPT; all after it are the script's own. The line of a
    launcher that you know (torchrun, accelerate launch, python -m torch.distributed.run, python)
    may stand in the place of SCRIPT: it is translated into options of client-lib, shown, and
    refused where it contradicts them.
    """
    if collapse and not follow:
        ctx.fail("--collapse is for the lines of -f; add -f, or use `client-lib logs --collapse`")
    described = submit_steps.job_of(ctx, connection, config, values)
    is_group = group or each or each_file or max_parallel or stop_on_failure
    if is_group and not (group and bool(each) != bool(each_file)):
        ctx.fail(
            "a group needs both --group NAME and one of --each NAME=VALUES and --each-file FILE"
        )
    if each and len(dict(each)) < len(each):
        ctx.fail("two --each have the same name: give all its values in one, as in lr=0.1,0.01")
    if group:
        if each_file:
            tried: Any = sweep.rows(submit_steps.read_text(each_file), each_file)
        else:
            tried = {name: sweep.values(text) for name, text in each or ()}
        limits: dict[str, Any] = {"max_parallel": max_parallel, "stop_on_failure": stop_on_failure}
        with printer.progress("submitting"):
            made = described.job.each(
                group, tried, **limits, python=described.python, check=not no_check
            )
        size = made.last_info.size
        printer.hint(f'Group "{group}" created: {size} jobs, {group}-0 to {group}-{size - 1}')
        shown = (
            [job.last_info.model_dump(mode="json") for job in made if job.last_info]
            if output == "json"
            else []
        )
        return _announce_group(connection, group, shown, output, follow)
    try:
        info = submit_steps.submit(described, not no_check)
    except KeyboardInterrupt:
        printer.hint("\ninterrupted; `client-lib list` shows whether the job was accepted already")
        raise
    return _announce(described.job, info, output, follow, collapse)


@job_command(
    app,
    examples="""
  client-lib render -N 2 train.py --epochs 3
  client-lib render -c job.yaml -o json | jq '.objects[0]'
""",
)
def render(
    ctx: typer.Context,
    connection: Connection,
    config: ConfigOption = None,
    output: YamlOrJson = "yaml",
    **values: Any,
) -> None:
    """Show what a submit with these arguments would create; nothing is created.

    Secrets are masked, and binary files are shown by their size and digest.
    """
    _print_manifest(submit_steps.job_of(ctx, connection, config, values), output)


class _Resubmit(Command):
    """Take the words behind `--` as the arguments of the script: typer can't tell `--` alone from
    no `--`.
    """

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- ARGS...]"]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        ctx.obj = args[at + 1 :] if at < len(args) else None
        return super().parse_args(ctx, args[:at])


@app.command(
    cls=_Resubmit,
    examples="""
  client-lib resubmit train-x7k2m
  client-lib resubmit train-x7k2m -- --lr 0.7           other arguments
  client-lib resubmit -f --name second-try train-x7k2m
  client-lib resubmit lr-scan --failed                  of a group, what did not succeed
  client-lib resubmit train-x7k2m --set n_workers=4 --set env_variables=LR=0.1

\b
Exit code with -f: that of the job, as with `submit -f`.
""",
)
def resubmit(
    ctx: typer.Context,
    connection: Connection,
    name: JobOrGroup,
    changes: Annotated[
        list[str] | None,
        Option(
            "--set",
            metavar="FIELD=VALUE",
            help="Another value for a field: `n_workers=4`, `env_variables=LR=0.1`, `args=--lr`. "
            "Repeated for a list.",
        ),
    ] = None,
    new_name: Annotated[
        str | None,
        Option(
            "--name",
            metavar="NAME",
            help="Name of the new job. Default: made from the script's name.",
        ),
    ] = None,
    resume: Annotated[
        bool | None,
        Option(
            "--resume/--no-resume",
            help="Start from the checkpoints of the old job, or without them. "
            "Default: from them if script, arguments, flags and variables are unchanged.",
            show_default=False,
        ),
    ] = None,
    failed: Annotated[
        bool, Option("--failed", help="Of a group: only its jobs that are FAILED or CANCELLED.")
    ] = False,
    follow: Follow = False,
    output: TextJsonOrName = "text",
) -> int:
    """Run a job again as a new one: the same code and spec, but for what `--set` and the arguments
    behind `--` change.

    Interpreter, environment and the values of secrets are those of this shell. If the old job has
    ended, and script, arguments, flags and variables are unchanged, the new one starts with a copy
    of its checkpoints.

    Of a group, a new job takes the place of each job that runs again, with the environment and the
    secrets of the first submit.
    """
    found = connection.job_or_group(name)
    if "told" in found:
        if changes or new_name or resume is not None or ctx.obj is not None:
            ctx.fail("a group runs again as it was submitted: it takes --failed, -f and -o alone")
        group = connection.api.resubmit_group(name, uuid.uuid4().hex, failed=failed)
        printer.hint(
            f"`client-lib list {name}` shows the new jobs, `client-lib list {group.earlier}` the "
            "earlier ones"
        )
        return _announce_group(connection, name, group.model_dump(mode="json"), output, follow)
    if failed:
        ctx.fail(f"--failed is for groups, and {found['name']} is a job")
    old = found["name"]
    spec = connection.api.job_request(old).spec
    changed = job_options.changes(changes or (), spec)
    if "name" in changed:
        ctx.fail("the name of the new job is given by --name NAME")
    if ctx.obj is not None:
        if "args" in changed:
            ctx.fail("--set args and arguments behind `--` exclude each other")
        changed |= with_arguments(spec, ctx.obj)
    with printer.progress("submitting"):
        python = submit_steps.find_python(os.environ)
        job = client.resubmit(
            old, client=connection.api, new_name=new_name, python=python, resume=resume, **changed
        )
        info = job.info()
    return _announce(job, info, output, follow)


# --- what the commands print


def _announce(job: Job, info: JobInfo, output: str, follow: bool, collapse: bool = False) -> int:
    """Print that the job was created, and with -f its logs until it has ended; return the exit
    code. Ctrl-C stops following; the job keeps running. With -f stdout is for the job's own lines,
    unless a form was asked for. Raises JobFailed or JobCancelled with the report."""
    printer.count_submit()
    if output == "json":
        printer.data_json(info.model_dump(mode="json"))
    elif output == "name":
        printer.data(info.name)
    elif follow:
        printer.hint(f'Job "{info.name}" created.')
    else:
        printer.data(f'Job "{info.name}" created.')
        printer.advise(f"`client-lib logs -f {info.name}` follows it")
    if not follow:
        for notice in info.notices:
            printer.hint(notice)
        return ExitCode.DONE
    job.logs(follow=True, collapse=collapse)
    info = submit_steps.end_of_followed(job)
    ended = info.model_dump(mode="json")
    last_line = table.end(ended, table.state(ended, datetime.now(timezone.utc)))
    printer.end(last_line, sys.stderr, deserves_attention=bool(info.attention))
    printer.advise(f"`client-lib logs {info.name}` shows its log again")
    return ExitCode.DONE


def _announce_group(
    connection: Connection, name: str, created: Any, output: str, follow: bool
) -> int:
    """Print that the group was created (`-o json`: `created`), and with -f wait for its
    jobs; return the exit code.
    """
    if output == "json":
        printer.data_json(created)
    elif output == "name" or not follow:
        printer.data(name)
    if not follow:
        return ExitCode.DONE
    return jobs.wait_for_all(connection, connection.each_member([name]))


def _print_manifest(described: DescribedJob, output: str) -> None:
    with printer.progress("rendering"):
        manifest = described.job.render(python=described.python)
    if output == "json":
        printer.data_json(manifest.model_dump(mode="json"))
    else:
        printer.data(manifest_text(manifest))


def manifest_text(manifest: Manifest) -> str:
    """The YAML of `-o json`, below a comment which says that kubectl can't apply it: of documents
    for each object kubectl would create all but the binary files, and pods would wait for these.
    """
    import yaml

    text = yaml.safe_dump(
        manifest.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=1000
    ).rstrip()
    return f"{_VIEW}\n{text}" if manifest.runtime == "kubernetes" else text
