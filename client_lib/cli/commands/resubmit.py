"""`client-lib resubmit`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from client_lib.cli import exits, job_options, printer, processes, submit_steps
from client_lib.cli.connection import Connection
from client_lib.cli.parameters import (
    Command,
    Follow,
    JobName,
    ProfileOption,
    ServerOption,
    TextJsonOrName,
    command_app,
)

app = command_app()


@app.command(
    "resubmit",
    cls=Command,
    epilog="""\b
Examples:
  client-lib resubmit train-x7k2m
  client-lib resubmit -f --name second-try train-x7k2m
  client-lib resubmit train-x7k2m --set n_workers=4 --set env_variables=LR=0.1

\b
Exit code with -f: that of the job, as with `submit -f`.
""",
)
def resubmit(
    name: JobName,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=VALUE",
            help="Another value for a field: `n_workers=4`, `env_variables=LR=0.1`, `args=--lr`. Repeated for a list.",
        ),
    ] = None,
    new_name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="Name of the new job. Default: made from the script's name."),
    ] = None,
    follow: Follow = False,
    output: TextJsonOrName = "text",
    endpoint: ServerOption = None,
    profile: ProfileOption = None,
) -> int:
    """Run a job again: the same code and spec, but for what `--set` changes, as a new job.

    Interpreter, environment and the values of secrets are those of this shell. Of a job that has ended the new one gets
    a copy of the checkpoints.
    """
    connection = Connection(endpoint, profile)
    old = connection.job(name)["name"]
    changed = job_options.changes(changes or (), connection.client.job_request(old).spec)
    with printer.progress("submitting"):
        python = processes.find_python(os.environ)
        job = connection.client.resubmit(old, new_name=new_name, python=python, **changed)
        info = job.info()
    submit_steps.announce(info, output, follow)
    return submit_steps.follow_to_end(job) if follow else exits.DONE
