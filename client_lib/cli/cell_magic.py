"""`%%job`: run the cell of a notebook as a job, with the options of `client-lib submit`.

%load_ext client_lib

%%job -N 2 train.py --epochs 3
import torch.distributed as dist
...
"""

from __future__ import annotations

import importlib
import shlex
from pathlib import Path
from typing import Any

import typer
from typer.main import get_command

from client_lib.cli import submit_steps
from client_lib.cli.connection import Connection
from client_lib.cli.job_options import JobCommand, with_job_options
from client_lib.cli.parameters import CommandApp
from client_lib.job import Job

FILE = "cell.py"

app = CommandApp()


@app.command("%%job", cls=JobCommand, context_settings=submit_steps.STOP_AT_SCRIPT)
@with_job_options
def _run(ctx: typer.Context, connection: Connection, **values: Any) -> Job:
    """Save the cell as SCRIPT (default: cell.py), run it as a job and print its lines until it has ended."""
    script = Path(values["script"] or FILE)
    if script.suffix != ".py":
        ctx.fail(f"%%job saves the cell as SCRIPT, and {script} does not end in .py")
    job, _ = submit_steps.job_of(ctx, connection, None, {**values, "script": str(script)})
    script.write_text(ctx.obj, "utf-8")
    job.submit()
    job.wait(follow=True)
    return job


def load_ipython_extension(shell: Any) -> None:
    """Register `%%job`; IPython calls this for `%load_ext client_lib`."""
    shell.register_magic_function(job, "cell")


def job(line: str, cell: str) -> Job | None:
    """Run a cell; None: only the help was asked for.

    Raises JobFailed and JobCancelled, the errors of `Job.submit`, and IPython's UsageError for wrong options.
    """
    command: Any = get_command(app)
    try:
        try:
            words = shlex.split(line)
        except ValueError as wrong:
            raise typer.BadParameter(f"{line!r} can't be read: {wrong}") from None
        done = command.main(words, prog_name="%%job", standalone_mode=False, obj=cell)
    except typer.TyperException as wrong:
        ipython = importlib.import_module("IPython.core.error")  # only a notebook has it
        raise ipython.UsageError(wrong.format_message()) from None
    return done if isinstance(done, Job) else None
