"""`client-lib doctor`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from typing import Any

from client_lib.cli import exits, printer, processes, show
from client_lib.cli.connection import Connection
from client_lib.cli.parameters import JSON, CommandApp, TableOrJson
from client_lib.errors import ClientLibError
from client_lib.spec import paths

IMPORT_S = 60.0  # torch from a cold disk
_HAS_TORCH = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"

app = CommandApp()


@app.command(
    epilog="""\b
Examples:
  client-lib doctor
  client-lib doctor -o json | jq '.[] | select(.ok | not)'

\b
Exit code: 0 all is well, 1 a check failed.
""",
)
def doctor(connection: Connection, output: TableOrJson = "table") -> int:
    """Check this machine as a client, then the server, which checks itself."""
    with printer.progress("asking the server"):
        checks = list(_checks(connection))
    if output == JSON:
        printer.data_json(checks)
    else:
        printer.table(show.CHECK_COLUMNS, map(show.check_row, checks))
    return exits.DONE if all(check["ok"] for check in checks) else exits.FAILED


def _python() -> dict[str, Any]:
    """Check the interpreter that jobs of this shell get: it runs, and has torch."""
    try:
        path = processes.find_python(os.environ)
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
