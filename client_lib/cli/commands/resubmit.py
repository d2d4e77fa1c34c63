"""`client-lib resubmit`."""

from __future__ import annotations

import os

import click

from client_lib.cli import exits, following, interpreter, job_spec, printer, submitting
from client_lib.cli.connection import Connection
from client_lib.cli.parameters import JSON, NAME, connected, job_name, output


@click.command(
    "resubmit",
    epilog="""\b
Examples:
  client-lib resubmit train-x7k2m
  client-lib resubmit -f --name second-try train-x7k2m
  client-lib resubmit train-x7k2m --set n_workers=4 --set env_variables=LR=0.1

\b
Exit code with -f: that of the job, as with `submit -f`.
""",
)
@job_name
@click.option(
    "--set",
    "changes",
    metavar="FIELD=VALUE",
    multiple=True,
    help="Another value for a field: `n_workers=4`, `env_variables=LR=0.1`, `args=--lr`. Repeated for a list.",
)
@click.option("--name", "new_name", metavar="NAME", help="Name of the new job. Default: made from the script's name.")
@click.option("-f", "--follow", is_flag=True, help="Print its logs until it has ended; the exit code is the job's.")
@output(submitting.TEXT, JSON, NAME)
@connected
def command(
    connection: Connection, name: str, changes: tuple[str, ...], new_name: str | None, follow: bool, output: str
) -> int:
    """Run a job again: the same code and spec, but for what `--set` changes, as a new job.

    Interpreter, environment and the values of secrets are those of this shell. Of a job that has ended the new one gets
    a copy of the checkpoints.
    """
    old = connection.job(name)["name"]
    given = job_spec.changes(changes, connection.client.job_request(old).spec)
    with printer.progress("submitting"):
        job = connection.client.resubmit(old, new_name=new_name, python=interpreter.find(os.environ), **given)
        info = job.info()
    submitting.announce(info, output, follow)
    return following.follow(job) if follow else exits.DONE
