"""`client-lib server`: the local server that runs in the background, and tokens for one that many use."""

from __future__ import annotations

from typing import Any

import click

from client_lib import local_server
from client_lib.cli import exits, printer, quick_read, server_process
from client_lib.cli.parameters import JSON, output
from client_lib.cli.quick_read import NotQuick, Target
from client_lib.errors import ClientLibError
from client_lib.spec import paths
from client_lib.spec.state_dir import SERVER_LOG, state_dir

TEXT = "text"


@click.group("server")
def command() -> None:
    """The local server of this machine. It is started on demand, and ends by itself when it is idle."""


@command.command(
    "status",
    epilog="""\b
Examples:
  client-lib server status
  tail -f "$(client-lib server status -o json | jq -r .log)"

\b
Exit code: 0 it runs, 4 it doesn't.
""",
)
@output(TEXT, JSON)
def status(output: str) -> int:
    """Does it run, where does it listen, where does it keep its data."""
    running = local_server.find()
    directory = running.state_dir if running else state_dir()
    facts: dict[str, Any] = {
        "running": running is not None,
        "state_dir": str(directory),
        "log": str(directory / SERVER_LOG),
    }
    if running:
        facts |= {"url": running.url, "pid": running.pid, "version": running.version, "started_at": running.started_at}
        info = _info(running)
        facts |= {"data_dir": running.data_dir, "answers": info is not None}
        facts["warm_pools"] = (info or {}).get("warm_pools", [])
    if output == JSON:
        printer.data_json(facts)
    else:
        _show(facts)
    return exits.DONE if running else exits.UNREACHABLE


def _info(running: local_server.Running) -> dict[str, Any] | None:
    """What the server says about itself; None: nothing."""
    try:
        answer: dict[str, Any] = quick_read.read(Target.of(*running.endpoint), paths.INFO)
    except (NotQuick, ClientLibError):
        return None
    return answer


def _show(facts: dict[str, Any]) -> None:
    said = {True: "yes", False: "no"}
    pools = facts.pop("warm_pools", [])
    rows = [(name.replace("_", " "), said.get(value, str(value))) for name, value in facts.items() if value is not None]
    rows += [("warm pool", _pool(pool)) for pool in pools]
    printer.data(printer.aligned(rows))
    if not facts["running"]:
        printer.hint("the next command that needs it starts it")


def _pool(pool: dict[str, Any]) -> str:
    size = f", {pool['memory_mib']:.0f} MiB" if pool.get("memory_mib") is not None else ""
    used = f", {pool['launches']} workers so far, idle for {pool['idle_s']:.0f} s"
    return f"{pool['state']}, pid {pool['pid']}, {pool['modules']} modules{size}{used}, {pool['python']}"


@command.command("stop")
def stop() -> None:
    """End it. Jobs run on, and the next command starts it again, which finds them."""
    running = local_server.find()
    if running is None:
        printer.hint("no local server runs here")
        return
    with printer.progress("the local server is ending"):
        local_server.stop(running)
    printer.data(f"the local server (pid {running.pid}) has ended")
    printer.hint("its jobs run on; the next command starts it again")


@command.command("token", context_settings={"ignore_unknown_options": True}, add_help_option=False)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def token(args: tuple[str, ...]) -> int:
    """Make a token for a user of a shared server; `server token --help` shows how."""
    return server_process.become(["token", *args])
