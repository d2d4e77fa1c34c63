"""A private PostgreSQL server from Debian's binaries: in a temporary folder, on a
socket there, gone after.
"""

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import sqlalchemy as sa

_SOCKET = ".s.PGSQL.5432"


def binaries() -> Path | None:
    """The folder of initdb and postgres; None: not installed."""
    on_path = shutil.which("initdb")
    found = [Path(on_path).parent] if on_path else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return found[-1] if found and (found[-1] / "initdb").exists() else None


class Server:
    """A server that runs, and that a test may stop and start."""

    def __init__(self, pg_ctl: Callable[..., None], url: str, folder: Path) -> None:
        self._pg_ctl = pg_ctl
        self._url = url
        self.folder = folder
        """Directory of its socket."""

    def url(self, database: str = "postgres", folder: Path | None = None) -> str:
        """SQLAlchemy's URL of a database; `folder`: that of a proxy's socket."""
        return self._url.format(database=database, host=folder or self.folder)

    def new_database(self, folder: Path | None = None) -> str:
        """The URL of a new, empty database."""
        name = f"t{uuid.uuid4().hex}"
        self.run(f"CREATE DATABASE {name}")
        return self.url(name, folder)

    def run(self, statement: str) -> None:
        admin = sa.create_engine(self.url(), isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
        with admin.connect() as connection:
            connection.exec_driver_sql(statement)

    def start(self) -> None:
        self._pg_ctl("start")

    def stop(self) -> None:
        """Like a crash: no connection is closed in order."""
        self._pg_ctl("-m", "immediate", "stop")

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop all of its processes, as a hypervisor does: connections stay
        open, and nothing answers.
        """
        main = int((self.folder / "data" / "postmaster.pid").read_text().split()[0])
        stopped: set[int] = set()
        # until no process has started another one meanwhile
        while new := {main, *_children(main)} - stopped:
            for pid in new:
                os.kill(pid, signal.SIGSTOP)
            stopped |= new
        try:
            yield
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)

    def restart(self) -> None:
        self.stop()
        self.start()


@contextlib.contextmanager
def started(programs: Path, address: str = "", clients: str = "") -> Iterator[Server]:
    """A running server. `address`: of this machine, listened on beside the socket for `clients`
    (10.0.0.0/8), at PostgreSQL's own port."""
    # a socket's path may have 107 characters
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
    user = _unprivileged()
    if user:
        os.chown(folder, user.pw_uid, user.pw_gid)
    data = folder / "data"
    try:
        _run(
            user,
            programs / "initdb",
            "-D",
            data,
            "-U",
            "test",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--no-sync",
        )
        if clients:
            with (data / "pg_hba.conf").open("a") as rules:
                rules.write(f"host all all {clients} trust\n")
        options = f"-k {folder} -c listen_addresses='{address}' -c fsync=off"

        def pg_ctl(*words: str) -> None:
            _run(
                user,
                programs / "pg_ctl",
                "-D",
                data,
                "-o",
                options,
                "-l",
                folder / "log",
                "-w",
                *words,
            )

        running = Server(
            pg_ctl, f"postgresql+psycopg://test@/{{database}}?host={address or '{host}'}", folder
        )
        running.start()
        try:
            yield running
        finally:
            with contextlib.suppress(RuntimeError):  # a test may have stopped it
                running.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Proxy:
    """A socket in front of a server's, which loses its connections as a network does."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.folder = folder
        self.loses_commits = False
        """The server gets each COMMIT, and the connection breaks before its answer."""
        self._server = server.folder / _SOCKET
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(folder / _SOCKET))
        self._listening.listen()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listening.close()
        self.cut()

    def cut(self) -> None:
        """Break all connections. Both ends notice."""
        for pair in self._pairs:
            _shut(*pair)
        self._pairs.clear()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(str(self._server))
                self._pairs.append((client, server))
                threading.Thread(target=self._to_server, args=(client, server), daemon=True).start()
                threading.Thread(target=_pump, args=(server, client), daemon=True).start()

    def _to_server(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(2**16):
                if self.loses_commits and b"COMMIT\0" in data:
                    client.shutdown(socket.SHUT_RDWR)
                    server.sendall(data)
                    return
                server.sendall(data)
        _shut(client, server)


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(2**16):
            target.sendall(data)
    _shut(source, target)


def _shut(*ends: socket.socket) -> None:
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def _unprivileged() -> pwd.struct_passwd | None:
    """The user to run as where we are root, as PostgreSQL refuses that one."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return pwd.getpwnam("postgres" if "postgres" in names else "nobody")


def _run(user: pwd.struct_passwd | None, *command: str | Path) -> None:
    # output to a file: the server that pg_ctl starts would keep a pipe open
    with tempfile.TemporaryFile() as output:
        done = subprocess.run(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            user=user.pw_uid if user else None,
            group=user.pw_gid if user else None,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
        )
        if done.returncode:
            output.seek(0)
            raise RuntimeError(f"{command[0]} failed: {output.read().decode()}")
