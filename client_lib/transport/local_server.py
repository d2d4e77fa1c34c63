"""The local server of this machine and user: found if it runs, started if it does not.

A running server holds a lock for its whole life, and only that proves that it runs; `server.json`
holds its address, and remains after the server has died. A client that starts one holds
`start.lock`, so that ten clients at once start one.

A client that meets a server of another version says so. It replaces an older one that has no jobs;
one with jobs, and a newer one, is used as it is.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from client_lib import __version__
from client_lib.durable import is_held, locked, write_json
from client_lib.errors import ClientLibError, Conflict, NotSupported, ServerError
from client_lib.launcher_protocol.directory import MARKER
from client_lib.spec import paths
from client_lib.spec.state_dir import (
    SERVER_JSON,
    SERVER_LOCK,
    SERVER_LOG,
    START_LOCK,
    STOP_JSON,
    TOKEN,
    make_private,
    state_dir,
)
from client_lib.spec.states import State
from client_lib.transport import http_client, logins
from client_lib.transport.config import Config, Endpoint
from client_lib.transport.rest import Rest

# a cold disk reads the server's libraries for some seconds; longer means that something is wrong
START_S = 60.0
STOP_S = 15.0
POLL_S = 0.003
# a server that we started ends after half an hour with no running job and no request
IDLE_EXIT_S = "1800"
LIBRARIES = (
    "fastapi",
    "uvicorn",
    "sqlalchemy",
    "alembic",
    "pydantic_settings",
    "prometheus_client",
)
"""They come with the extra `server`."""

_log = logging.getLogger("client_lib")
_children: list[
    subprocess.Popen[bytes]
] = []  # servers that this process started: polled, so that none stays a zombie
# servers whose version was looked at: once per process is enough
_checked: set[tuple[str, int]] = set()


@dataclass(frozen=True)
class Running:
    """A server that holds its lock, as its server.json describes it."""

    state_dir: Path
    url: str
    pid: int
    version: str
    started_at: str | None = None
    data_dir: str | None = None
    code: str | None = None  # folder of its packages; None: a server of an older version

    @property
    def endpoint(self) -> Endpoint:
        """The URL with the token of this server, read from its 0600 file."""
        with suppress(FileNotFoundError):
            return Endpoint(self.url, (self.state_dir / TOKEN).read_text().strip() or None)
        return Endpoint(self.url)


def find(directory: Path | None = None) -> Running | None:
    """The server that runs here, or None. Starts nothing and asks nothing over the network. Raises
    Conflict if the state belongs to another host, whose loopback address means nothing here."""
    directory = directory or state_dir()
    lock = directory / SERVER_LOCK
    here = socket.gethostname()
    # missing or incomplete
    with suppress(FileNotFoundError, NotADirectoryError, ValueError, TypeError, KeyError):
        data = json.loads((directory / SERVER_JSON).read_bytes())
        url, pid, version, host = (data[name] for name in ("url", "pid", "version", "host"))
        if host != here:
            raise Conflict(
                f"{directory} holds the state of a server on {host}, and this is {here}",
                hint=f"set CLIENT_LIB_STATE_DIR to a directory of this host alone, or, if {host} "
                f"is gone, remove {directory / SERVER_JSON}",
            )
        # a new server that does not listen yet holds the lock beside an older server.json
        if is_held(str(lock)) and json.loads(lock.read_bytes())["pid"] == pid:
            return Running(
                directory, url, pid, version, *map(data.get, ("started_at", "data_dir", "code"))
            )
    return None


def find_all() -> list[Running]:
    """The servers of this user on this machine, with any state directory. Elsewhere than on Linux:
    only the server that `find` finds.
    """
    directories = {state_dir()}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = os.fsdecode((process / "cmdline").read_bytes()).split("\0")
            if (
                process.stat().st_uid == os.getuid()
                and "server_stub" in line
                and "--state-dir" in line
            ):
                directories.add(
                    Path(os.readlink(process / "cwd"), line[line.index("--state-dir") + 1])
                )
        except (OSError, IndexError):  # it has ended
            continue
    return [running for directory in sorted(directories) if (running := find(directory))]


def locate(config: Config) -> Endpoint:
    """The server that `config` names. The local server is started if it doesn't run."""
    if config.endpoint:
        return (
            Endpoint(config.endpoint, config.token)
            if config.token
            else logins.endpoint(config.endpoint)
        )
    return _settle(find_or_start(config.state_dir)).endpoint


def find_or_start(directory: Path | None = None) -> Running:
    """The server that runs here; if none does, one that this call starts.

    Raises:
        NotSupported: on Windows, which has no local runtime, or without the server's libraries.
        Conflict: as `find`.
        ServerError: it doesn't start, with the end of its log; or its state directory can't be
            used.
    """
    if sys.platform == "win32":
        raise NotSupported(
            "jobs don't run on Windows itself",
            hint="give the address of a server, as endpoint= or CLIENT_LIB_ENDPOINT",
        )
    directory = directory or state_dir()
    try:
        if running := find(directory):
            return running
        make_private(directory)
        # no other client starts one; it is done within START_S
        with locked(str(directory / START_LOCK)):
            lock = directory / SERVER_LOCK
            # one may be started by hand meanwhile; one that is about to end holds the lock for a
            # moment longer
            if not _until(lambda: not is_held(str(lock)) or find(directory) is not None, START_S):
                message = f"a process holds {lock} but does not say where it listens"
                raise ServerError(message, hint=_foreground(directory))
            return find(directory) or _start(directory)
    except OSError as error:
        raise ServerError(
            f"the local server can't keep its state in {directory}: {error}"
        ) from error


def stop(running: Running) -> None:
    """Ask the server to end, and wait until it has ended; its jobs run on. Returns at once if the
    server is gone already. Raises ServerError: the server still runs after STOP_S."""
    lock = str(running.state_dir / SERVER_LOCK)
    if not is_held(lock):
        return
    _say_who_asks(running.state_dir)
    # the server has ended since, or is in another namespace of pids
    with suppress(ProcessLookupError):
        os.kill(running.pid, signal.SIGTERM)  # find() saw this pid in the lock that is held
    if not _until(lambda: not is_held(lock), STOP_S):
        raise ServerError(
            f"the local server (pid {running.pid}) does not end",
            hint=f"kill -9 {running.pid} ends it",
        )


def _say_who_asks(directory: Path) -> None:
    """Leave a note for the log of the server; a server is stopped without the note, too."""
    with suppress(OSError):  # a full disk, or the working directory is gone
        write_json(str(directory / STOP_JSON), {"pid": os.getpid(), "cwd": os.getcwd()})


# --- starting one


def _start(directory: Path) -> Running:
    (directory / SERVER_JSON).unlink(missing_ok=True)  # of a dead server
    log = directory / SERVER_LOG
    begin = log.stat().st_size if log.exists() else 0
    _log.debug("starting the local server")
    check_installed()
    # MARKER: one that a job starts is no process of that job, and outlives it
    environment = {"CLIENT_LIB_SERVER_IDLE_EXIT_S": IDLE_EXIT_S, **os.environ, MARKER: ""}
    with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", "server_stub", "--state-dir", str(directory)],
            # no descriptor of ours stays open in it: `client-lib submit | tee` ends
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=directory,
            env=environment,
            start_new_session=True,  # Ctrl-C at the client and a closed terminal are not for it
        )
    _children[:] = [other for other in _children if other.poll() is None] + [child]
    _until(lambda: find(directory) is not None or child.poll() is not None, START_S)
    if running := find(directory):
        return running
    ended = child.poll()
    how = (
        f"ended with exit code {ended}"
        if ended is not None
        else f"does not answer after {START_S:g} s"
    )
    with log.open("rb") as file:
        file.seek(begin)
        lines = file.read().decode("utf-8", "replace").splitlines()[-30:]
    said = "\n".join([f"; the end of {log}:", *lines]) if lines else f"; {log} is empty"
    raise ServerError(f"the local server {how}{said}", hint=_foreground(directory))


def check_installed() -> None:
    """Raises NotSupported naming the extra if the server's libraries are
    missing; imports none of them.
    """
    if missing := missing_libraries():
        raise NotSupported(
            f"the server's libraries are not installed here ({', '.join(missing)})",
            hint=f"{sys.executable} -m pip install 'client-lib[server]' installs them; or give the "
            "address of another server in CLIENT_LIB_ENDPOINT",
        )


def missing_libraries() -> list[str]:
    return [name for name in LIBRARIES if find_spec(name) is None]


def _foreground(directory: Path) -> str:
    return f"`client-lib serve --state-dir {directory}` runs it where you can see it"


def _until(condition: Callable[[], bool], within_s: float) -> bool:
    """Wait until `condition()` is true, which is polled: nothing portable wakes.
    False: it was not in time.
    """
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


# --- one of another version


def _settle(running: Running) -> Running:
    """The server to use: `running`, or one of this version in its place if it is older and has no
    jobs. The state is durable, so that nobody is asked. A newer one stays: its database may be one
    that an older server cannot read."""
    if (running.url, running.pid) in _checked:
        return running
    _checked.add((running.url, running.pid))
    if running.version == __version__:
        if other := _other_code(running, Path(__file__).parents[2]):
            _log.warning(
                "the local server %s; `client-lib server restart` starts it with this code", other
            )
        return running
    if _ordered(running.version) > _ordered(__version__):
        _log.warning(
            "the local server is of version %s, newer than this client (%s); `pip install "
            "--upgrade client-lib` renews the client",
            running.version,
            __version__,
        )
        return running
    busy = _has_jobs(running)
    if not busy and not missing_libraries():
        _log.info("the local server of version %s is replaced by %s", running.version, __version__)
        stop(running)
        return find_or_start(running.state_dir)
    _log.warning(
        "the local server is of version %s, older than this client (%s)%s; `client-lib server "
        "restart` replaces it",
        running.version,
        __version__,
        " and has jobs" if busy else "",
    )
    return running


def _other_code(running: Running, root: Path) -> str | None:
    """Compare the code of this server with that in `root`; None: they are the same, or no
    checkout, or it is ending.
    """
    if running.code is None or "site-packages" in str(root):
        return None
    if running.code != str(root):
        return f"runs the code in {running.code}, and this client that in {root}"
    with suppress(FileNotFoundError):  # a file of the code may be removed meanwhile, too
        written = (running.state_dir / SERVER_JSON).stat().st_mtime
        # each call of the client looks at all files, so without `Path`
        for package in ("client_lib", "server_stub"):
            for folder, _, files in os.walk(root / package):
                for path in (
                    os.path.join(folder, file)
                    for file in files
                    if file.endswith(".py") and file[0] != "."
                ):
                    if os.lstat(path).st_mtime > written:
                        return f"was started before {path} was changed"
    return None


def _ordered(version: str) -> tuple[int, ...]:
    """Sort key of a version: its first three numbers, then 0 for one before its release, such as
    `0.2.0.dev0`, and 1 for a release."""
    public = version.partition("+")[0]
    numbers = [int(part) for part in re.findall(r"\d+", public)[:3]]
    is_release = re.search(r"dev|rc|[ab]\d", public) is None
    return (*numbers, *[0] * (3 - len(numbers)), int(is_release))


def _has_jobs(running: Running) -> bool:
    """Some job isn't final. A server that can't be asked counts as one
    with jobs: it is left alone.
    """
    rest = Rest(lambda: running.endpoint, Config(running.url, retry_s=0), http_client.connect)
    asked = (
        {"state": state, "limit": 1} for state in (State.RUNNING, State.PENDING, State.RESTARTING)
    )
    try:
        return any(rest.read(paths.JOBS, "jobs", params, read_s=5.0)["jobs"] for params in asked)
    except ClientLibError:
        return True
    finally:
        rest.close()
