"""`client-lib serve`, `server`, `ui` and `instances`: a server in the foreground, the local one in the background,
tokens for one that many use; its pages and its instance types.
"""

from __future__ import annotations

import html
import os
import subprocess
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from client_lib.cli import ExitCode, http_client, printer
from client_lib.cli.connection import Connection, Json, read
from client_lib.cli.parameters import (
    JSON,
    NAME,
    CommandApp,
    JobOrAll,
    TableJsonOrName,
    TextOrJson,
    help_without_command,
)
from client_lib.errors import ClientLibError
from client_lib.reports.table import aligned, stamp
from client_lib.spec import paths
from client_lib.spec.state_dir import SERVER_LOG, make_private, state_dir
from client_lib.transport import local_server
from client_lib.transport.config import resolve
from client_lib.transport.rest import Rest
from client_lib.worker.directory import write_file

INFO_S = 10.0
# Without the current folder on the path: a user's `queue.py` there is not the server's.
_START = (
    "import sys; sys.path = [p for p in sys.path if p]; "
    "from server_stub.__main__ import main; sys.exit(main(sys.argv[2:], sys.argv[1]))"
)

app = CommandApp()
group = CommandApp(invoke_without_command=True)
app.add_typer(group, name="server")


@app.command(
    context_settings={"ignore_unknown_options": True},
    add_help_option=False,  # `serve --help` is answered by the server, which knows its own flags
)
def serve(
    args: Annotated[list[str] | None, typer.Argument(metavar="[ARGS]...", help="Flags of the server.")] = None,
) -> int:
    """Run a server in the foreground, for this machine's user or for several; `serve --help` shows its options."""
    return become_server("client-lib serve", args or ())


def become_server(program: str, args: Sequence[str]) -> int:
    """Replace this process by the server, so that signals reach it and the exit code is its own. Windows has no exec:
    there the server is a child. `program` is its name in its help.

    Raises NotSupported naming the extra where the server's libraries are missing.
    """
    local_server.check_installed()
    line = [sys.executable, "-c", _START, program, *args]
    sys.stdout.flush()
    if os.name == "posix":
        os.execv(line[0], line)
    return subprocess.call(line)


@app.command(
    epilog="""\b
Examples:
  client-lib ui                                  the jobs
  client-lib ui train-x7k2m                      this job
  client-lib ui --no-browser                     print the link, to open it elsewhere
"""
)
def ui(
    connection: Connection,
    name: JobOrAll = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open a browser, or print the link.")] = True,
    output: TextOrJson = "text",
) -> None:
    """Open the server's pages in a browser: jobs, logs, curves. The link logs you in and works once."""
    job = "" if name is None else f"&job={quote(connection.job(name)['name'], safe='')}"
    link = connection.api.login_link()
    url = f"{connection.rest.endpoint.url.rstrip('/')}/{link.path}{job}"
    # elsewhere on Linux there is no browser, or one that would run in the terminal
    has_screen = sys.platform != "linux" or "DISPLAY" in os.environ or "WAYLAND_DISPLAY" in os.environ
    if output == JSON:
        printer.data_json({"url": url, "expires_s": link.expires_s})
    elif not (browser and has_screen and _opened(url, connection.config.state_dir)):
        printer.data(url)
        printer.hint(f"open it within {link.expires_s / 60:.0f} min; it works once")


def _opened(url: str, directory: Path | None) -> bool:
    """Open the link by a file that leads to it: every account of this machine can read a browser's arguments."""
    try:
        file = make_private(directory or state_dir()) / "login.html"
        write_file(str(file), f'<meta http-equiv="refresh" content="0;url={html.escape(url)}">\n'.encode())
    except OSError:  # the link is printed
        return False
    return webbrowser.open(file.as_uri())


@app.command(
    epilog="""\b
Examples:
  client-lib instances
  client-lib instances -o json | jq '.[] | select(.gpus >= 8) | .name'
"""
)
def instances(connection: Connection, output: TableJsonOrName = "table") -> None:
    """List the instance types of the server, and how many workers of each fit right now."""
    kinds = connection.items(paths.INSTANCE_TYPES, "instance_types")
    if output == JSON:
        printer.data_json(kinds)
    elif output == NAME:
        printer.lines(kind["name"] for kind in kinds)
    else:
        printer.table(("NAME", "GPUS", "CORES", "MEMORY", "FREE", "DESCRIPTION"), map(_instance_row, kinds))


def _instance_row(kind: Json) -> tuple[str, ...]:
    available = kind.get("available")
    return (
        kind["name"],
        str(kind["gpus"]),
        f"{kind['cpu']:g}",
        f"{kind['memory_gib']:g} GiB",
        "?" if available is None else str(available),
        kind.get("description", ""),
    )


# --- the local server


@group.callback()
def server(ctx: typer.Context) -> None:
    """The local server of this machine. It is started on demand, and ends by itself when it is idle."""
    help_without_command(ctx)


@group.command(
    epilog="""\b
Examples:
  client-lib server status
  tail -f "$(client-lib server status -o json | jq -r .log)"

\b
Exit code: 0 it runs, 4 it doesn't.
"""
)
def status(output: TextOrJson = "text") -> int:
    """Show whether it runs, where it listens, and where it keeps its data."""
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
        facts["disk_mib"] = _disk_mib(Path(running.data_dir)) if running.data_dir else {}
        facts["memory_mib"] = _memory_mib(running.pid)
    if output == JSON:
        printer.data_json(facts)
    else:
        _show(facts)
    return ExitCode.DONE if running else ExitCode.UNREACHABLE


def _info(running: local_server.Running) -> dict[str, Any] | None:
    """The server's own facts; None: it does not answer."""
    rest = Rest(lambda: running.endpoint, resolve(running.url), http_client.connect)
    try:
        return read(rest, paths.INFO, "runtime", read_s=INFO_S, retry_s=0)
    except ClientLibError:
        return None


def _disk_mib(data: Path) -> dict[str, float]:
    """MiB on the disk of each part of the data; hard links of a file count once."""
    sizes: dict[str, int] = {}
    seen: set[tuple[int, int]] = set()
    for folder, _, files in os.walk(data):
        part = Path(folder).relative_to(data).parts
        for name in files:
            try:
                found = os.lstat(os.path.join(folder, name))
            except FileNotFoundError:  # removed since
                continue
            if (found.st_dev, found.st_ino) not in seen:
                seen.add((found.st_dev, found.st_ino))
                key = part[0] if part else "database"
                sizes[key] = sizes.get(key, 0) + found.st_blocks * 512
    return {name: round(size / 2**20, 1) for name, size in sorted(sizes.items())}


def _memory_mib(pid: int) -> float | None:
    """Resident memory; None where there is no /proc."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return None
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)


def _show(facts: dict[str, Any]) -> None:
    said = {True: "yes", False: "no"}
    pools = facts.pop("warm_pools", [])
    disk, memory = facts.pop("disk_mib", {}), facts.pop("memory_mib", None)
    if "started_at" in facts:
        facts["started_at"] = stamp(facts["started_at"])
    rows = [(name.replace("_", " "), said.get(value, str(value))) for name, value in facts.items() if value is not None]
    if disk:
        parts = ", ".join(f"{name} {size}" for name, size in disk.items())
        rows.append(("disk", f"{sum(disk.values()):.1f} MiB: {parts}"))
    if memory is not None:
        rows.append(("memory", f"{memory} MiB"))
    rows += [("warm pool", _pool(pool)) for pool in pools]
    printer.data(aligned(rows))
    if not facts["running"]:
        printer.hint("the next command that needs it starts it")


def _pool(pool: dict[str, Any]) -> str:
    size = f", {pool['memory_mib']:.0f} MiB" if pool.get("memory_mib") is not None else ""
    used = f", {pool['launches']} workers so far, idle for {pool['idle_s']:.0f} s"
    return f"{pool['state']}, pid {pool['pid']}, {pool['modules']} modules{size}{used}, {pool['python']}"


@group.command()
def stop(
    every: Annotated[
        bool, typer.Option("--all", help="Stop your servers with other state directories on this machine, too.")
    ] = False,
) -> None:
    """Stop it. Jobs keep running; the next command starts it again, and it finds them."""
    here = local_server.find()
    found = local_server.find_all() if every else [here] if here else []
    if not found:
        printer.hint("no local server runs here")
        return
    for running in found:
        with printer.progress("the local server is ending"):
            local_server.stop(running)
        where = f", {running.state_dir}" if every else ""
        printer.data(f"the local server (pid {running.pid}{where}) has ended")
    printer.hint("its jobs keep running; the next command starts it again")


@group.command()
def restart() -> None:
    """Stop it and start it again, with the code that is installed now. Jobs keep running."""
    running = local_server.find()
    with printer.progress("the local server is restarting"):
        if running:
            local_server.stop(running)
        started = local_server.find_or_start()
    printer.data(f"the local server (pid {started.pid}) runs at {started.url}")


@group.command(context_settings={"ignore_unknown_options": True}, add_help_option=False)
def token(args: Annotated[list[str] | None, typer.Argument(metavar="[ARGS]...")] = None) -> int:
    """Make a token for a user of a shared server; `server token --help` shows how."""
    return become_server("client-lib server", ["token", *(args or ())])


@group.command(
    epilog="""\b
Examples:
  client-lib server check k8s/overlays/mine/catalogue.yaml

\b
Exit code: 0 it is valid, 2 it isn't.
"""
)
def check(file: Annotated[str, typer.Argument(help="YAML of a cluster, or TOML of a local server.")]) -> int:
    """Check a catalogue before a server gets it, and print all errors with their lines."""
    return become_server("client-lib server", ["check", "--", file])
