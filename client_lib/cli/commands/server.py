"""`client-lib serve`, `server`, `ui`, `instances` and `doctor`: a server in the foreground; the
local server in the background; tokens for a server that many use; and of any server its pages, its
instance types, and checks of server and client.
"""

import html
import os
import subprocess
import sys
import tempfile
import webbrowser
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer
from typer import Argument, Option

from client_lib.cli import printer
from client_lib.cli.asking import agreed
from client_lib.cli.connection import Connection, Json
from client_lib.cli.parameters import (
    CommandApp,
    JobOrAll,
    TableJsonOrName,
    TableOrJson,
    TextOrJson,
    require_command,
)
from client_lib.cli.program import ExitCode
from client_lib.durable import write_file
from client_lib.errors import ClientLibError, ServerError
from client_lib.reports.table import aligned, stamp
from client_lib.spec import paths
from client_lib.spec.state_dir import SERVER_LOG, make_private, state_dir
from client_lib.transport import http_client, local_server
from client_lib.transport.config import resolve
from client_lib.transport.rest import Rest
from client_lib.version import described, this_version

INFO_S = 10.0
IMPORT_S = 60.0  # torch from a cold disk
_HAS_TORCH = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
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
    args: Annotated[
        list[str] | None, Argument(metavar="[ARGS]...", help="Flags of the server.")
    ] = None,
) -> int:
    """Run a server in the foreground, for this machine's user or for several;
    `serve --help` shows its options.
    """
    return become_server("client-lib serve", args or ())


def become_server(program: str, args: Sequence[str]) -> int:
    """Replace this process by the server, so that signals reach it and the exit code is its own.
    Windows has no exec: there the server is a child. `program` is its name in its help. Raises
    NotSupported naming the extra where the server's libraries are missing."""
    local_server.check_installed()
    line = [sys.executable, "-c", _START, program, *args]
    sys.stdout.flush()
    if os.name == "posix":
        os.execv(line[0], line)
    return subprocess.call(line)


@app.command(
    examples="""
  client-lib ui                                  the jobs
  client-lib ui train-x7k2m                      this job
  client-lib ui --no-browser                     print the link, to open it elsewhere
"""
)
def ui(
    connection: Connection,
    name: JobOrAll = None,
    no_browser: Annotated[
        bool, Option("--no-browser", help="Print the link; open no browser.", show_default=False)
    ] = False,
    output: TextOrJson = "text",
) -> None:
    """Open the server's pages in a browser: jobs, logs, curves. The link
    logs you in and works once.
    """
    place = "" if name is None else _place(connection.job_or_group(name))
    link = connection.api.login_link()
    url = f"{connection.rest.endpoint.url.rstrip('/')}/{link.path}{place}"
    # elsewhere on Linux there is no browser, or one that would run in the terminal
    has_screen = (
        sys.platform != "linux" or "DISPLAY" in os.environ or "WAYLAND_DISPLAY" in os.environ
    )
    if output == "json":
        printer.data_json({"url": url, "expires_s": link.expires_s})
    elif no_browser or not (has_screen and _opened(url, connection.config.state_dir)):
        printer.data(url)
        printer.hint(f"open it within {link.expires_s / 60:.0f} min; it works once")


def _place(found: Json) -> str:
    """The parameter of a link for the page of a job, or for the list with a group unfolded."""
    if "told" in found:
        group = f"{found['owner']}/{found['name']}"
        return f"&group={quote(group, safe='')}"
    return f"&job={quote(found['name'], safe='')}"


def _opened(url: str, directory: Path | None) -> bool:
    """Open the link by a file that leads to it: every account of this machine can
    read a browser's arguments.
    """
    try:
        file = make_private(directory or state_dir()) / "login.html"
        write_file(
            str(file), f'<meta http-equiv="refresh" content="0;url={html.escape(url)}">\n'.encode()
        )
    except OSError:  # the link is printed
        return False
    return webbrowser.open(file.as_uri())


@app.command(
    examples="""
  client-lib instances
  client-lib instances -o json | jq '.[] | select(.gpus >= 8) | .name'
"""
)
def instances(connection: Connection, output: TableJsonOrName = "table") -> None:
    """List the instance types of the server, and how many workers of each fit right now."""
    kinds = connection.rest.read(paths.INSTANCE_TYPES, "instance_types")["instance_types"]
    if output == "json":
        printer.data_json(kinds)
    elif output == "name":
        printer.lines(kind["name"] for kind in kinds)
    else:
        rows = []
        for kind in kinds:
            free = kind.get("available")
            size = (str(kind["gpus"]), f"{kind['cpu']:g}", f"{kind['memory_gib']:g} GiB")
            rows.append(
                (
                    kind["name"],
                    *size,
                    "?" if free is None else str(free),
                    kind.get("description", ""),
                )
            )
        printer.table(("NAME", "GPUS", "CORES", "MEMORY", "FREE", "DESCRIPTION"), rows)


@app.command(
    examples="""
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
        Option(
            min=1,
            metavar="N",
            help="Run the preflight of `submit --preflight` alone, as a job of N workers, and "
            "print what it finds.",
        ),
    ] = None,
    instance_type: Annotated[
        str | None,
        Option(
            "-i", "--instance-type", metavar="TEXT", help="Instance type of the workers of --gang."
        ),
    ] = None,
    output: TableOrJson = "table",
) -> int:
    """Check this machine as a client, then the server, which checks itself."""
    if gang:
        return _check_gang(connection, gang, instance_type)
    if instance_type:
        ctx.fail("-i is for the workers of --gang N")
    with printer.progress("asking the server"):
        checks = _checks(connection)
    if output == "json":
        printer.data_json(checks)
    else:
        rows = [
            (each["name"], "yes" if each["ok"] else "NO", each["message"], each.get("fix") or "")
            for each in checks
        ]
        printer.table(("CHECK", "OK", "MESSAGE", "FIX"), rows)
    return ExitCode.DONE if all(check["ok"] for check in checks) else ExitCode.FAILED


def _check_gang(connection: Connection, n_workers: int, instance_type: str | None) -> int:
    from client_lib.cli import submit_steps
    from client_lib.job import Job

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
    job.logs(follow=True)
    submit_steps.end_of_followed(job)
    return ExitCode.DONE


def _python() -> Json:
    """Check the interpreter that jobs of this shell get: it runs, and has torch."""
    from client_lib.cli import submit_steps

    try:
        path = submit_steps.find_python(os.environ)
    except ClientLibError as problem:
        return _check("python", False, problem.message, problem.hint)
    line = [path, "-c", _HAS_TORCH]
    try:
        torch = (
            subprocess.run(line, timeout=IMPORT_S, check=False, capture_output=True).returncode == 0
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return _check(
            "python", False, f"jobs of this shell get {path}, which doesn't run: {error}", None
        )
    fix = None if torch else f"{path} -m pip install torch, or activate the environment that has it"
    return _check(
        "python", torch, f"jobs of this shell get {path}, with{'' if torch else 'out'} torch", fix
    )


def _checks(connection: Connection) -> list[Json]:
    """The checks in the order of the list. The Python of this shell is left out where jobs run
    with the Python of an image.
    """
    found = [_check("client", True, f"version {this_version()}", None)]
    runtime = "local"
    try:
        info = connection.server_info()
        runtime = info["runtime"]
        version = described(info["version"], info.get("commit"))
        facts = f"version {version}, user {info['user']}"
        found.append(_check("server", True, f"{connection.running().url} answers ({facts})", None))
        found += connection.rest.read(paths.DOCTOR, "checks")["checks"]
    except ClientLibError as problem:
        found.append(_check("server", False, problem.message, problem.hint))
    return [_python(), *found] if runtime == "local" else found


def _check(name: str, ok: bool, message: str, fix: str | None) -> Json:
    return {"name": name, "ok": ok, "message": message, "fix": fix}


# --- the local server


@group.callback()
def server(ctx: typer.Context) -> None:
    """The local server of this machine. It is started on demand, and ends
    by itself when it is idle.
    """
    require_command(ctx)


@group.command(
    examples="""
  client-lib server status
  tail -f "$(client-lib server status -o json | jq -r .log)"

\b
Exit code: 0 the server runs, 4 it doesn't.
"""
)
def status(output: TextOrJson = "text") -> int:
    """Show whether the local server runs, where it listens, and where its data is."""
    running = local_server.find()
    directory = running.state_dir if running else state_dir()
    facts: Json = {
        "running": running is not None,
        "state_dir": str(directory),
        "log": str(directory / SERVER_LOG),
    }
    info: Json = {}
    if running:
        with suppress(ClientLibError):
            rest = Rest(lambda: running.endpoint, resolve(running.url), http_client.connect)
            info = rest.read(paths.INFO, "runtime", read_s=INFO_S, retry_s=0)
        facts |= {
            "url": running.url,
            "pid": running.pid,
            "version": running.version,
            "started_at": running.started_at,
        }
        facts |= {
            "data_dir": running.data_dir,
            "answers": bool(info),
            "warm_pools": info.get("warm_pools", []),
        }
        facts["disk_mib"] = _disk_mib(Path(running.data_dir)) if running.data_dir else {}
        facts["memory_mib"] = None
        with suppress(OSError):  # there is no /proc
            pages = int(Path(f"/proc/{running.pid}/statm").read_text().split()[1])
            facts["memory_mib"] = round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)
    if output == "json":
        printer.data_json(facts)
    else:
        _show(facts)
    return ExitCode.DONE if running else ExitCode.UNREACHABLE


def _show(facts: Json) -> None:
    shown = dict(facts)
    pools = shown.pop("warm_pools", [])
    disk = shown.pop("disk_mib", {})
    memory = shown.pop("memory_mib", None)
    if "started_at" in shown:
        shown["started_at"] = stamp(shown["started_at"])
    said = {True: "yes", False: "no"}
    rows = [
        (name.replace("_", " "), said.get(value, str(value)))
        for name, value in shown.items()
        if value is not None
    ]
    if disk:
        parts = ", ".join(f"{name} {size}" for name, size in disk.items())
        rows.append(("disk", f"{sum(disk.values()):.1f} MiB: {parts}"))
    if memory is not None:
        rows.append(("memory", f"{memory} MiB"))
    for pool in pools:
        size = f", {pool['memory_mib']:.0f} MiB" if pool.get("memory_mib") is not None else ""
        used = f", {pool['launches']} workers so far, idle for {pool['idle_s']:.0f} s"
        what = (
            f"{pool['state']}, pid {pool['pid']}, {pool['modules']} modules{size}{used}, "
            f"{pool['python']}"
        )
        rows.append(("warm pool", what))
    printer.data(aligned(rows))
    if not facts["running"]:
        printer.hint("the next command that needs it starts it")


def _disk_mib(data: Path) -> dict[str, float]:
    """MiB on the disk of each part of the data; hard links of a file count once."""
    sizes: dict[str, int] = {}
    seen: set[tuple[int, int]] = set()
    for folder, _, files in os.walk(data):
        part = next(iter(Path(folder).relative_to(data).parts), "database")
        for name in files:
            with suppress(FileNotFoundError):  # removed since
                found = os.lstat(os.path.join(folder, name))
                if (found.st_dev, found.st_ino) not in seen:
                    seen.add((found.st_dev, found.st_ino))
                    sizes[part] = sizes.get(part, 0) + found.st_blocks * 512
    return {name: round(size / 2**20, 1) for name, size in sorted(sizes.items())}


@group.command()
def stop(
    every: Annotated[
        bool,
        Option(
            "--all",
            help="Stop your servers with other state directories on this machine, too. Their "
            "directories are printed first, and you are asked.",
        ),
    ] = False,
    yes: Annotated[bool, Option("-y", "--yes", help="Don't ask.")] = False,
) -> int:
    """Stop the local server. Jobs keep running; the next command starts the server again."""
    here = local_server.find()
    found = local_server.find_all() if every else [here] if here else []
    if not found:
        printer.hint("no local server runs here")
        return ExitCode.DONE
    others = [running for running in found if running != here]
    if others and not yes:
        printer.lines(f"pid {each.pid}, {each.state_dir}" for each in found)
        question = "stop 1 server?" if len(found) == 1 else f"stop these {len(found)} servers?"
        if not agreed(question, "add --yes to the same command, or leave --all out"):
            return ExitCode.DONE
    return stop_each(found)


def stop_each(found: Sequence[local_server.Running]) -> int:
    """Stop servers, also after one that does not end; the exit code."""
    problems = [problem for running in found if (problem := _stopped(running))]
    for problem in problems:
        printer.error(problem)
    if len(problems) < len(found):
        printer.hint("its jobs keep running; the next command starts it again")
    return ExitCode.FAILED if problems else ExitCode.DONE


def _stopped(running: local_server.Running) -> ClientLibError | None:
    """Stop a server; None: it has ended."""
    try:
        with printer.progress("the local server is ending"):
            local_server.stop(running)
    except (ClientLibError, OSError) as problem:
        return problem if isinstance(problem, ClientLibError) else ServerError(str(problem))
    printer.data(f"the local server (pid {running.pid}, {running.state_dir}) has ended")
    return None


@group.command()
def restart() -> None:
    """Restart the local server with the code that is installed now. Jobs keep running."""
    running = local_server.find()
    with printer.progress("the local server is restarting"):
        if running:
            local_server.stop(running)
        started = local_server.find_or_start()
    printer.data(f"the local server (pid {started.pid}) runs at {started.url}")


@group.command(context_settings={"ignore_unknown_options": True}, add_help_option=False)
def token(args: Annotated[list[str] | None, Argument(metavar="[ARGS]...")] = None) -> int:
    """Make a token for a user of a shared server; `server token --help` shows how."""
    return become_server("client-lib server", ["token", *(args or ())])


@group.command(
    examples="""
  client-lib server check k8s/overlays/mine/catalogue.yaml

\b
Exit code: 0 the catalogue is valid, 2 it isn't.
"""
)
def check(
    file: Annotated[
        str, Argument(metavar="FILE", help="YAML of a cluster, or TOML of a local server.")
    ],
) -> int:
    """Check the file of a catalogue, and print all errors with their lines. A
    `pod_template` is tried on the cluster of the kubeconfig by a dry run."""
    return become_server("client-lib server", ["check", "--", file])
