"""`client-lib submit`."""

from __future__ import annotations

from typing import Any

import click

from client_lib.cli import exits, following, manifest, printer, submitting
from client_lib.cli.connection import Connection
from client_lib.cli.parameters import JSON, NAME, collapse, connected, output
from client_lib.spec.wire import JobInfo


@click.command(
    "submit",
    context_settings=submitting.STOP_AT_SCRIPT,
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
  that of the job: 0 SUCCEEDED, 1 FAILED, 3 CANCELLED; 130 after Ctrl-C, and the job goes on
""",
)
@click.option("-f", "--follow", is_flag=True, help="Print its logs until it has ended; the exit code is the job's.")
@collapse("With -f: ")
@click.option("--dry-run", is_flag=True, help="Print what would be created; create nothing.")
@output(submitting.TEXT, JSON, NAME)
@connected
@submitting.job_arguments
def command(
    connection: Connection, file: str | None, follow: bool, collapse: bool, dry_run: bool, output: str, **values: Any
) -> int:
    """Run SCRIPT as a job.

    Options of ours stand in front of SCRIPT; all behind it are the script's own. The line of a launcher that you know
    (torchrun, accelerate launch, python -m torch.distributed.run, python) may stand in the place of SCRIPT: it is read
    as options of ours, shown, and refused where it contradicts them.
    """
    if collapse and not follow:
        raise click.UsageError("--collapse says how -f shows the lines; add -f, or use `client-lib logs --collapse`")
    asked = submitting.job_of(connection, values, file)
    if dry_run:
        printer.data(manifest.text(submitting.render(asked), as_json=output == JSON))
        return exits.DONE
    info = _submitted(asked)
    submitting.announce(info, output, follow)
    return following.follow(asked.job, collapse) if follow else exits.DONE


def _submitted(asked: submitting.Asked) -> JobInfo:
    try:
        return submitting.submit(asked)
    except KeyboardInterrupt:
        printer.hint("\ninterrupted; `client-lib list` shows whether the job was accepted already")
        raise
