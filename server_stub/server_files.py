"""The files by which this machine knows its server: locks, `server.json` and the local token.

One server per state directory and one per data directory, whichever way they were started: a flock held for the whole
life, which dies with the process however it dies. What the files say is for people and for the client
(`client_lib.spec.state_dir` has the names and where they lie); only the lock decides.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from client_lib.errors import Conflict, ServerError
from client_lib.spec import state_dir
from client_lib.worker.system import boot_id
from server_stub.users_file import new_token

Facts = dict[str, Any]
"""What a server says about itself; see client_lib.spec.state_dir.SERVER_JSON."""

_LOOKED_AT_S = 1.0  # clients see by a shared lock, held for microseconds, whether a server lives


class DirectoryLock:
    """The lock of one directory, held by this process."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / state_dir.SERVER_LOCK
        self._file: int | None = None

    def take(self, facts: Facts) -> None:
        """Hold it, and say who holds it. A dead server's file is taken over.

        Raises:
            Conflict: another server lives; its pid and URL are named.
            ServerError: the directory can't be written.
        """
        try:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            _lock(self._file)
        except BlockingIOError as error:
            raise Conflict(
                f"another server ({self._holder()}) works on {self._path.parent}",
                hint="`client-lib server stop` ends it; another --data-dir and --state-dir keep both",
            ) from error
        except OSError as error:
            raise ServerError(f"the directory {self._path.parent} can't be used: {error.strerror}") from error
        self.say(facts)

    def say(self, facts: Facts) -> None:
        """Replace what the lock file tells. A full disk is no reason not to run."""
        assert self._file is not None
        text = json.dumps(facts).encode()
        try:
            os.pwrite(self._file, text, 0)
            os.ftruncate(self._file, len(text))
        except OSError:
            pass

    def check(self) -> None:
        """Raises ServerError: the directory, or its lock, was removed or replaced. Another server may hold the new one,
        and what this one writes is nowhere."""
        assert self._file is not None
        try:
            ours = os.path.samestat(os.fstat(self._file), os.stat(self._path))
        except OSError:
            ours = False
        if not ours:
            raise ServerError(
                f"{self._path.parent} is gone, or another one is in its place: the server ends",
                hint="its next start begins anew there",
            )

    def release(self) -> None:
        """The file stays: removing it would let two servers hold two locks of one name."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _holder(self) -> str:
        assert self._file is not None
        os_text = os.pread(self._file, 4096, 0)
        os.close(self._file)
        self._file = None
        try:
            facts = json.loads(os_text)
            return ", ".join(filter(None, (f"pid {facts['pid']}", facts.get("url"), f"host {facts['host']}")))
        except (ValueError, KeyError):
            return f"{self._path} names it not yet"


def _lock(file: int) -> None:
    """Take the exclusive lock, past clients that only look. Raises BlockingIOError: another server has it."""
    deadline = time.monotonic() + _LOOKED_AT_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # refused beside a server, but not beside who looks
            fcntl.flock(file, fcntl.LOCK_UN)
            time.sleep(0.001)


@contextmanager
def locked(directories: list[Path], facts: Facts) -> Iterator[list[DirectoryLock]]:
    """Hold all of them (each once); raises as DirectoryLock.take does."""
    locks: list[DirectoryLock] = []
    try:
        for directory in dict.fromkeys(path.resolve() for path in directories):
            lock = DirectoryLock(directory)
            lock.take(facts)
            locks.append(lock)
        yield locks
    finally:
        for lock in locks:
            lock.release()


def facts(version: str, data_dir: Path, url: str | None = None) -> Facts:
    """What this process says about itself; `url` once it listens."""
    return {
        "url": url,
        "pid": os.getpid(),
        "version": version,
        "boot_id": boot_id(),
        "host": socket.gethostname(),
        "started_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "data_dir": str(data_dir),
    }


def prepare(settings_state_dir: Path, data_dir: Path) -> None:
    """Create both, ours alone. A data directory that is there already and another's (a volume in a cluster) is left so.

    Raises ServerError with the directory and what is wrong with it.
    """
    for directory in (settings_state_dir, data_dir):
        try:
            if directory == settings_state_dir or not directory.exists():
                state_dir.make_private(directory)
            elif directory.stat().st_uid == os.getuid():
                directory.chmod(0o700)
        except OSError as error:
            reason = error.strerror or str(error)
            raise ServerError(f"the directory {directory} can't be used: {reason}") from error


def write_server_json(directory: Path, content: Facts) -> None:
    """Atomically, 0600. Call it once the server listens."""
    _write_private(directory / state_dir.SERVER_JSON, json.dumps(content))


def remove_server_json(directory: Path) -> None:
    """Only if it is this process's own."""
    path = directory / state_dir.SERVER_JSON
    try:
        if json.loads(path.read_text()).get("pid") == os.getpid():
            path.unlink()
    except (OSError, ValueError):
        pass


def local_token(directory: Path) -> str:
    """The token of the local server, made 0600 at the first start. Another's readable copy is made private again."""
    path = directory / state_dir.TOKEN
    try:
        token = path.read_text().strip()
        path.chmod(0o600)
    except FileNotFoundError:
        token = ""
    if not token:
        token = new_token()
        _write_private(path, token + "\n")
    return token


def _write_private(path: Path, text: str) -> None:
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    new.replace(path)
