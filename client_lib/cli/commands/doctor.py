"""`client-lib doctor`."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from client_lib.cli import ExitCode, printer, submit_steps
from client_lib.cli.connection import Connection
from client_lib.cli.parameters import JSON, CommandApp, TableOrJson
from client_lib.errors import ClientLibError
from client_lib.job import Job
from client_lib.spec import paths

IMPORT_S = 60.0  # torch from a cold disk
_HAS_TORCH = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"

app = CommandApp()


@app.command(
    epilog="""\b
Examples:
  client-lib doctor
  client-lib doctor -o json | jq '.[] | select(.ok | not)'
  client-lib doctor --gang 8 -i a100.8gpu            do 8 of these machines work together?

\b
Exit code: 0 all is well, 1 a check failed.
"""
)
def doctor(
    ctx: typer.Context,
    connection: Connection,
    gang: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Run the preflight of `submit --preflight` alone, as a job of N workers, and print what it finds.",
        ),
    ] = None,
    instance_type: Annotated[
        str | None, typer.Option("-i", "--instance-type", metavar="TEXT", help="Of the workers of --gang.")
    ] = None,
    output: TableOrJson = "table",
) -> int:
    """Check this machine as a client, then the server, which checks itself."""
    if gang:
        return _check_gang(connection, gang, instance_type)
    if instance_type:
        ctx.fail("-i is for the workers of --gang N")
    with printer.progress("asking the server"):
        checks = list(_checks(connection))
    if output == JSON:
        printer.data_json(checks)
    else:
        rows = [
            (each["name"], "yes" if each["ok"] else "NO", each["message"], each.get("fix") or "") for each in checks
        ]
        printer.table(("CHECK", "OK", "MESSAGE", "FIX"), rows)
    return ExitCode.DONE if all(check["ok"] for check in checks) else ExitCode.FAILED


def _check_gang(connection: Connection, n_workers: int, instance_type: str | None) -> int:
    """Raises JobFailed: a check failed; its message names the worker."""
    with tempfile.TemporaryDirectory() as folder, printer.progress("submitting"):
        script = Path(folder, "gang.py")
        script.write_text("")  # the preflight comes before it
        job = Job(
            script=script,
            n_workers=n_workers,
            instance_type=instance_type,
            working_dir=folder,
            code="snapshot",
            outputs=[],
            preflight_check=True,
            client=connection.api,
        )
        job.submit(python=submit_steps.find_python(os.environ))
    with printer.hint_on_interrupt(job.name or ""):
        job.logs(follow=True)
        submit_steps.end_of_followed(job)
    return ExitCode.DONE


def _python() -> dict[str, Any]:
    """Check the interpreter that jobs of this shell get: it runs, and has torch."""
    try:
        path = submit_steps.find_python(os.environ)
    except ClientLibError as problem:
        return _check("python", False, problem.message, problem.hint)
    try:
        torch = (
            subprocess.run([path, "-c", _HAS_TORCH], timeout=IMPORT_S, check=False, capture_output=True).returncode == 0
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return _check("python", False, f"jobs of this shell get {path}, which doesn't run: {error}", None)
    fix = None if torch else f"{path} -m pip install torch, or activate the environment that has it"
    return _check("python", torch, f"jobs of this shell get {path}, with{'' if torch else 'out'} torch", fix)


def _checks(connection: Connection) -> Iterator[dict[str, Any]]:
    """The checks. The python of this shell is left out where jobs run with that of an image."""
    try:
        info = connection.server_info()
    except ClientLibError as problem:
        yield from (_python(), _check("server", False, problem.message, problem.hint))
        return
    if info["runtime"] == "local":
        yield _python()
    facts = f"version {info['version']}, user {info['user']}"
    yield _check("server", True, f"{connection.running().url} answers ({facts})", None)
    try:
        yield from connection.items(paths.DOCTOR, "checks")
    except ClientLibError as problem:
        yield _check("server", False, problem.message, problem.hint)


def _check(name: str, ok: bool, message: str, fix: str | None) -> dict[str, Any]:
    return {"name": name, "ok": ok, "message": message, "fix": fix}
