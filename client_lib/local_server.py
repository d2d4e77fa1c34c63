"""The local server of this machine and user: found where it runs, started where it doesn't.

What proves that a server runs is the lock that it holds for its whole life; `server.json` only says where it listens,
and a dead server leaves it behind. Who starts one holds `start.lock`, so ten clients at once start one. Standard
library only: the fast reads of the command line use it too. What lies where is `spec.state_dir`; the server is
`server_stub`; whether a server of another version will do is `server_version`.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from client_lib.config import Endpoint
from client_lib.errors import Conflict, NotSupported, ServerError
from client_lib.spec.state_dir import SERVER_JSON, SERVER_LOCK, SERVER_LOG, START_LOCK, TOKEN, make_private, state_dir

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    import subprocess

START_S = 60.0  # a cold disk reads the server's libraries for some seconds; longer means that something is wrong
STOP_S = 15.0
POLL_S = 0.003
IDLE_EXIT_S = "1800"  # a server that we started ends after half an hour with no running job and no request
WORKER_DIR = "CLIENT_LIB_WORKER_DIR"  # client_lib.worker.directory.MARKER, which would cost an import
_TAIL = 30  # lines of its log that a failed start shows

_log = logging.getLogger("client_lib")
_children: list[subprocess.Popen[bytes]] = []  # servers that this process started: polled, so that none stays a zombie


@dataclass(frozen=True)
class Running:
    """A server that holds its lock, as its server.json describes it."""

    state_dir: Path
    url: str
    pid: int
    version: str
    host: str
    started_at: str | None = None
    data_dir: str | None = None

    @property
    def endpoint(self) -> Endpoint:
        """With the token of this server, read from its 0600 file."""
        try:
            token = (self.state_dir / TOKEN).read_text().strip() or None
        except FileNotFoundError:
            token = None
        return Endpoint(self.url, token)


def find(directory: Path | None = None) -> Running | None:
    """The server that runs here, or None. Starts nothing and asks nothing over the network.

    Raises Conflict if the state belongs to another host: a loopback address of it would mean nothing here.
    """
    directory = directory or state_dir()
    running = _described(directory)
    if running is None:
        return None
    _refuse_foreign(running)
    return running if _holds(running, directory / SERVER_LOCK) else None


def find_or_start(directory: Path | None = None) -> Running:
    """The server that runs here; if none does, one that this call starts.

    Raises:
        NotSupported: on Windows, which has no local runtime.
        Conflict: the state directory belongs to another host.
        ServerError: it doesn't start; with the end of its log.
    """
    if sys.platform == "win32":
        raise NotSupported(
            "jobs don't run on Windows itself", hint="give the address of a server, as endpoint= or CLIENT_LIB_ENDPOINT"
        )
    directory = directory or state_dir()
    running = find(directory)
    if running:
        return running
    try:
        make_private(directory)
        with _starting(directory):
            return _wait_for_other(directory) or _start(directory)
    except OSError as error:
        raise ServerError(f"the local server can't keep its state in {directory}: {error}") from error


def stop(running: Running) -> None:
    """Ask the server to end, and wait until it has; its jobs run on. Returns at once if it is gone already.

    Raises ServerError: it still runs after 15 s.
    """
    lock = running.state_dir / SERVER_LOCK
    if not _held(lock):
        return
    os.kill(running.pid, signal.SIGTERM)  # find() saw this pid in the lock that is held
    if not _until(lambda: not _held(lock), STOP_S):
        raise ServerError(f"the local server (pid {running.pid}) does not end", hint=f"kill -9 {running.pid} ends it")


# --- what lies in the state directory


def _described(directory: Path) -> Running | None:
    """What server.json says; None where there is none, or half of one."""
    try:
        data = json.loads((directory / SERVER_JSON).read_bytes())
        url, pid, version, host = (data[name] for name in ("url", "pid", "version", "host"))
        return Running(directory, url, pid, version, host, data.get("started_at"), data.get("data_dir"))
    except (FileNotFoundError, NotADirectoryError, ValueError, TypeError, KeyError):
        return None


def _refuse_foreign(running: Running) -> None:
    here = socket.gethostname()
    if running.host != here:
        raise Conflict(
            f"{running.state_dir} holds the state of a server on {running.host}, and this is {here}",
            hint=f"set CLIENT_LIB_STATE_DIR to a directory of this host alone, or, if {running.host} is gone, "
            f"remove {running.state_dir / SERVER_JSON}",
        )


def _holds(running: Running, lock: Path) -> bool:
    """The lock is held, and by this server: a new one that does not listen yet leaves an older server.json behind."""
    try:
        return _held(lock) and json.loads(lock.read_bytes())["pid"] == running.pid
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return False


def _held(lock: Path) -> bool:
    """Does a process hold this lock? Looks with a shared one that is given back at once."""
    try:
        file = os.open(lock, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(file)


# --- starting one


@contextmanager
def _starting(directory: Path) -> Iterator[None]:
    """Inside, no other client starts a server here."""
    file = os.open(directory / START_LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)  # the holder is done within START_S
        yield
    finally:
        os.close(file)


def _wait_for_other(directory: Path) -> Running | None:
    """A server that another client has started meanwhile, or that somebody starts by hand right now.

    None: the lock is free. A server that is about to end holds it for a moment longer.
    """
    lock = directory / SERVER_LOCK
    if _until(lambda: not _held(lock) or find(directory) is not None, START_S):
        return find(directory)
    raise ServerError(f"a process holds {lock} but does not say where it listens", hint=_foreground(directory))


def _start(directory: Path) -> Running:
    (directory / SERVER_JSON).unlink(missing_ok=True)  # of a dead server
    log = directory / SERVER_LOG
    begin = log.stat().st_size if log.exists() else 0
    child = _spawn(directory, log)
    _until(lambda: find(directory) is not None or child.poll() is not None, START_S)
    running = find(directory)
    if running:
        return running
    ended = child.poll()
    how = f"ended with exit code {ended}" if ended is not None else f"does not answer after {START_S:g} s"
    raise ServerError(f"the local server {how}{_said(log, begin)}", hint=_foreground(directory))


def _spawn(directory: Path, log: Path) -> subprocess.Popen[bytes]:
    import subprocess  # with the next, 15 ms that a server which runs already does not cost
    from importlib.util import find_spec

    if not (find_spec("server_stub") and find_spec("fastapi")):
        raise ServerError(
            f"the local server is not installed for {sys.executable}",
            hint="pip install 'client-lib[server]', or give the address of another server in CLIENT_LIB_ENDPOINT",
        )

    environment = {"CLIENT_LIB_SERVER_IDLE_EXIT_S": IDLE_EXIT_S, **os.environ}
    environment[WORKER_DIR] = ""  # one that a job starts is no process of that job, and outlives it
    with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", "server_stub", "--state-dir", str(directory)],
            stdin=subprocess.DEVNULL,  # no descriptor of ours stays open in it: `client-lib submit | tee` ends
            stdout=output,
            stderr=output,
            cwd=directory,
            env=environment,
            start_new_session=True,  # Ctrl-C at the client and a closed terminal are not for it
        )
    _children[:] = [other for other in _children if other.poll() is None] + [child]
    return child


def _said(log: Path, begin: int) -> str:
    with log.open("rb") as file:
        file.seek(begin)
        lines = file.read().decode("utf-8", "replace").splitlines()[-_TAIL:]
    return f"; the end of {log}:\n" + "\n".join(lines) if lines else f"; {log} is empty"


def _foreground(directory: Path) -> str:
    return f"`{sys.executable} -m server_stub --state-dir {directory}` runs it where you can see it"


def _until(condition: Callable[[], bool], within_s: float) -> bool:
    """Whether `condition()` became true in time. Looks every 3 ms: there is nothing portable to wait on."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True
