"""`client-lib resubmit`: the stored request of a job, sent again by whoever asks now."""

from __future__ import annotations

import hashlib
import os
import uuid
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from client_lib.api import Api
from client_lib.cli import exits, following, interpreter, printer, submitting
from client_lib.cli.connection import Connection
from client_lib.cli.parameters import JSON, NAME, connected, job_name, output
from client_lib.source import shared_folder_proof
from client_lib.spec.wire import CodeInPlace, JobInfo, SubmitRequest, Submitter
from client_lib.submitter import submitter


@click.command(
    "resubmit",
    epilog="""\b
Examples:
  client-lib resubmit train-x7k2m
  client-lib resubmit -f --fresh --name second-try train-x7k2m

\b
Exit code with -f: that of the job.
""",
)
@job_name
@click.option("--name", "new_name", metavar="NAME", help="Name of the new job. Default: made from the script's name.")
@click.option("--fresh", is_flag=True, help="With a checkpoint directory of its own, instead of the old job's.")
@click.option("-f", "--follow", is_flag=True, help="Print its logs until it has ended; the exit code is the job's.")
@output(submitting.TEXT, JSON, NAME)
@connected
def command(connection: Connection, name: str, new_name: str | None, fresh: bool, follow: bool, output: str) -> int:
    """Run a job again: the same spec and code, from its directory, going on from its checkpoints.

    Interpreter, environment and the values of secrets are those of this shell.
    """
    old = connection.job(name)["name"]
    with printer.progress("submitting"):
        info = _submit(connection.client, old, new_name, fresh)
    submitting.announce(info, output, follow)
    return following.follow(connection, info.name) if follow else exits.DONE


def _submit(api: Api, old: str, new_name: str | None, fresh: bool) -> JobInfo:
    before = api.job_request(old)
    ran_as = next(iter(api.job_manifest(old).objects), {})
    changes: dict[str, Any] = {"name": new_name}
    if before.spec.checkpoint_dir is None and not fresh and "checkpoint_dir" in ran_as:
        changes["checkpoint_dir"] = ran_as["checkpoint_dir"]
    request = SubmitRequest(
        spec=before.spec.model_copy(update=changes),
        code=before.code,
        submitter=_submitter(api, ran_as.get("working_dir") if isinstance(before.code, CodeInPlace) else None),
        secret_values={name: os.environ[name] for name in before.spec.secrets if name in os.environ},
    )
    with _proof(request) as proof:
        if isinstance(request.code, CodeInPlace):
            request = request.model_copy(update={"code": _code_now(request, proof)})
        return api.submit_request(request, str(uuid.uuid4()))


def _submitter(api: Api, working_dir: str | None) -> Submitter:
    """Of this shell, but in the directory from which the job ran."""
    folder = working_dir or os.getcwd()
    if not api.runs_here():
        return Submitter(working_dir=folder)
    return submitter(os.environ, folder, interpreter.find(os.environ))


def _proof(request: SubmitRequest) -> Any:
    """That we share the folder, if it is here; a server that ran the script in place before may know it without."""
    script = request.spec.python_script
    folder = os.path.dirname(script) if script else request.submitter.working_dir
    here = isinstance(request.code, CodeInPlace) and folder and os.path.isdir(folder)
    return shared_folder_proof(Path(folder)) if here and folder else nullcontext()


def _code_now(request: SubmitRequest, proof: Any) -> CodeInPlace:
    """In place means the script as it is now, so its digest is taken anew where the file can be read."""
    script = request.spec.python_script
    digest = request.code.sha256
    if script and os.path.isfile(script):
        digest = hashlib.sha256(Path(script).read_bytes()).hexdigest()
    return CodeInPlace(mode="in_place", sha256=digest, proof=proof)
