"""`client-lib run`."""

from __future__ import annotations

from typing import Any

import click

from client_lib.cli import exits, foreground, printer, submitting
from client_lib.cli.connection import Connection
from client_lib.cli.parameters import connected
from client_lib.errors import JobCancelled, JobFailed


@click.command(
    "run",
    context_settings=submitting.STOP_AT_SCRIPT,
    epilog="""\b
Examples:
  client-lib run train.py --epochs 3
  client-lib run --processes-per-worker 4 train.py    as torchrun --nproc-per-node 4 train.py
  client-lib run torchrun --nproc-per-node 4 train.py

\b
Exit code:
  0 SUCCEEDED; else that of the first failing rank, 128 + N where signal N ended it; 3 cancelled by another;
  130 after Ctrl-C
""",
)
@connected
@submitting.job_arguments
def command(connection: Connection, file: str | None, **values: Any) -> int:
    """Run SCRIPT in the foreground, as torchrun would.

    Output as it comes; on this machine rank 0 reads this terminal (breakpoint() works on one process). Ctrl-C cancels
    the job, with its grace period; a second one stops waiting for that. What is left is the job's record and its logs.
    """
    asked = submitting.job_of(connection, values, file)
    job = asked.job
    foreground.lend_stdin()
    ours = foreground.Foreground(job)
    try:
        with ours.held():
            name = submitting.submit(asked).name
            ours.submitted()
            printer.hint(f'Job "{name}" created.')
            job.logs(follow=True)
            job.wait()
    except (JobFailed, JobCancelled) as problem:
        printer.error(problem)
        return foreground.exit_code(problem, ours.signal)
    return exits.DONE
