"""`client-lib submit`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from client_lib.cli import exits, printer, submit_steps
from client_lib.cli.connection import Connection
from client_lib.cli.job_options import ConfigOption, with_job_options
from client_lib.cli.parameters import (
    JSON,
    CollapseFollowed,
    Command,
    Follow,
    ProfileOption,
    ServerOption,
    TextJsonOrName,
    command_app,
)
from client_lib.spec.wire import JobInfo

app = command_app()


@app.command(
    "submit",
    cls=Command,
    context_settings=submit_steps.STOP_AT_SCRIPT,
    epilog="""\b
Examples:
  client-lib submit train.py --epochs 3              --epochs is the script's own
  client-lib submit -f -N 2 -i a100.8gpu train.py    2 workers of 8 GPUs, followed
  client-lib submit -c job.yaml --name night-run     fields from a file, one changed
  client-lib submit -t binary -- ./measure.sh -v     any program
  client-lib submit torchrun --nnodes 2 --nproc-per-node 4 train.py --lr 0.1
  client-lib submit --dry-run train.py               what would be created

\b
Exit code with -f:
  that of the job: 0 SUCCEEDED, 1 FAILED, 3 CANCELLED; 130 after Ctrl-C, and the job keeps running
""",
)
@with_job_options
def submit(
    ctx: typer.Context,
    config: ConfigOption = None,
    follow: Follow = False,
    collapse: CollapseFollowed = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be created; create nothing.")] = False,
    output: TextJsonOrName = "text",
    endpoint: ServerOption = None,
    profile: ProfileOption = None,
    **values: Any,
) -> int:
    """Run SCRIPT as a job.

    Options of client-lib stand before SCRIPT; all after it are the script's own. The line of a launcher that you know
    (torchrun, accelerate launch, python -m torch.distributed.run, python) may stand in the place of SCRIPT: it is
    translated into options of client-lib, shown, and refused where it contradicts them.
    """
    if collapse and not follow:
        ctx.fail("--collapse is for the lines of -f; add -f, or use `client-lib logs --collapse`")
    described = submit_steps.job_of(ctx, Connection(endpoint, profile), config, values)
    if dry_run:
        printer.data(submit_steps.manifest_text(submit_steps.render(described), as_json=output == JSON))
        return exits.DONE
    info = _submitted(described)
    submit_steps.announce(info, output, follow)
    return submit_steps.follow_to_end(described.job, collapse) if follow else exits.DONE


def _submitted(described: submit_steps.DescribedJob) -> JobInfo:
    try:
        return submit_steps.submit(described)
    except KeyboardInterrupt:
        printer.hint("\ninterrupted; `client-lib list` shows whether the job was accepted already")
        raise
