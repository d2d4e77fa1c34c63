"""The files that identify the server of this machine: locks, `server.json` and the local token.

Only one server runs per state directory and per data directory: each holds a flock on both, which
the kernel releases when the process ends in any way. The content of the files is information for
people and for the client (`client_lib.spec.state_dir` has their names and places); the lock alone
decides.
"""

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from client_lib.durable import write_file
from client_lib.errors import Conflict, ServerError
from client_lib.launcher_protocol.processes import boot_id
from client_lib.spec import state_dir
from server_stub.http.users_file import new_token

Facts = dict[str, Any]
"""Facts about a running server; see client_lib.spec.state_dir.SERVER_JSON."""

_SHARED_LOCKS_S = 1.0  # clients hold a shared lock for microseconds to check that a server lives


class DirectoryLock:
    """The lock of one directory, held by this process."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / state_dir.SERVER_LOCK
        self._file = -1

    def take(self, facts: Facts) -> None:
        """Take the lock and write the facts of its holder. The file of a dead server is reused.
        Raises Conflict: another server lives, whose pid and URL are named; ServerError: the
        directory can't be written."""
        try:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._wait()
        except BlockingIOError as error:
            text = os.pread(self._file, 4096, 0)
            self.release()
            try:
                told = json.loads(text)
                holder = ", ".join(
                    filter(None, (f"pid {told['pid']}", told.get("url"), f"host {told['host']}"))
                )
            except (ValueError, KeyError):
                holder = f"{self._path} names it not yet"
            raise Conflict(
                f"another server ({holder}) works on {self._path.parent}",
                hint="`client-lib server stop` ends it; another --data-dir and --state-dir keep "
                "both",
            ) from error
        except OSError as error:
            raise ServerError(
                f"the directory {self._path.parent} can't be used: {error.strerror}"
            ) from error
        self.write(facts)

    def _wait(self) -> None:
        """Take it once clients release theirs. Raises BlockingIOError: another server has it."""
        deadline = time.monotonic() + _SHARED_LOCKS_S
        while True:
            try:
                return fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
                # refused while a server holds it, granted beside clients
                fcntl.flock(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                fcntl.flock(self._file, fcntl.LOCK_UN)
                time.sleep(0.001)

    def write(self, facts: Facts) -> None:
        """Replace the content of the lock file. A failure, such as a full disk, does not matter."""
        text = json.dumps(facts).encode()
        with suppress(OSError):
            os.pwrite(self._file, text, 0)
            os.ftruncate(self._file, len(text))

    def check(self) -> None:
        """Raises ServerError: the directory or its lock file was removed or replaced. Another
        server may hold the new one, and files that this server writes are lost."""
        with suppress(OSError):
            if os.path.samestat(os.fstat(self._file), os.stat(self._path)):
                return
        raise ServerError(
            f"{self._path.parent} is gone, or another one is in its place: the server ends",
            hint="its next start begins with an empty one",
        )

    def release(self) -> None:
        """Release the lock. The file stays: removing it would let two servers
        hold two locks of one name.
        """
        os.close(self._file)


@contextmanager
def locked(directories: list[Path], facts: Facts) -> Iterator[list[DirectoryLock]]:
    """Hold the locks of all directories (each once). Raises the errors of DirectoryLock.take."""
    locks = []
    with ExitStack() as held:
        for directory in dict.fromkeys(path.resolve() for path in directories):
            lock = DirectoryLock(directory)
            lock.take(facts)
            held.callback(lock.release)
            locks.append(lock)
        yield locks


def facts(version: str, data_dir: Path, url: str | None = None) -> Facts:
    """The facts about this process; `url` is known once it listens."""
    return {
        "url": url,
        "pid": os.getpid(),
        "version": version,
        "boot_id": boot_id(),
        "host": socket.gethostname(),
        "started_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "data_dir": str(data_dir),
        "code": str(Path(__file__).parents[1]),
    }


def prepare(settings_state_dir: Path, data_dir: Path) -> None:
    """Create both directories with mode 0700. An existing data directory of another user (a volume)
    stays as it is. Raises ServerError, which names the directory and what is wrong with it."""
    for directory in (settings_state_dir, data_dir):
        try:
            if directory == settings_state_dir or not directory.exists():
                state_dir.make_private(directory)
            elif directory.stat().st_uid == os.getuid() and directory.stat().st_mode & 0o066:
                # 0711 stays: jobs may run below it under accounts of their users
                directory.chmod(0o700)
        except OSError as error:
            reason = error.strerror or str(error)
            raise ServerError(f"the directory {directory} can't be used: {reason}") from error


def write_server_json(directory: Path, content: Facts) -> None:
    """Call it once the server listens."""
    (directory / state_dir.STOP_JSON).unlink(missing_ok=True)  # it was for a server before
    _write_private(directory / state_dir.SERVER_JSON, json.dumps(content))


def remove_server_json(directory: Path) -> None:
    """Remove the file if it names this process."""
    path = directory / state_dir.SERVER_JSON
    with suppress(OSError, ValueError):
        if json.loads(path.read_text()).get("pid") == os.getpid():
            path.unlink()


def who_asked_to_stop(directory: Path) -> str:
    """Read and remove the note of the client that asked for the end; "": there is none."""
    path = directory / state_dir.STOP_JSON
    try:
        asks = json.loads(path.read_bytes())
        path.unlink()
        return f"asked by pid {asks['pid']}, cwd {asks['cwd']}"
    except (OSError, ValueError, TypeError, LookupError):
        return ""


def local_token(directory: Path) -> str:
    """The token of the local server. Its file is made at the first start, and its mode is set to
    0600 at each start. Call it under the lock of the directory: two first servers would make two
    tokens."""
    path = directory / state_dir.TOKEN
    with suppress(FileNotFoundError):
        path.chmod(0o600)
        if token := path.read_text().strip():
            return token
    token = new_token()
    _write_private(path, token + "\n")
    return token


def _write_private(path: Path, text: str) -> None:
    """Raises ServerError: the directory can't be written."""
    try:
        write_file(str(path), text.encode())
    except OSError as error:
        raise ServerError(f"{path} can't be written: {error.strerror}") from error
