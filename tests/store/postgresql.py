"""A private PostgreSQL server from Debian's binaries: in a temporary folder, on a socket there, gone after."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path


def binaries() -> Path | None:
    """The folder of initdb and postgres; None: not installed."""
    on_path = shutil.which("initdb")
    found = [Path(on_path).parent] if on_path else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return found[-1] if found and (found[-1] / "initdb").exists() else None


@contextlib.contextmanager
def server(programs: Path, address: str = "", clients: str = "") -> Iterator[str]:
    """A running server; yields the SQLAlchemy URL of its database without a name: append one.

    `address`: of this machine, listened on beside the socket for `clients` (10.0.0.0/8), at PostgreSQL's own port.
    """
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))  # a socket's path may have 107 characters
    user = _unprivileged()
    if user:
        os.chown(folder, user.pw_uid, user.pw_gid)
    data = folder / "data"
    try:
        _run(user, programs / "initdb", "-D", data, "-U", "test", "-A", "trust", "-E", "UTF8", "--no-sync")
        if clients:
            with (data / "pg_hba.conf").open("a") as rules:
                rules.write(f"host all all {clients} trust\n")
        options = f"-k {folder} -c listen_addresses='{address}' -c fsync=off"
        _run(user, programs / "pg_ctl", "-D", data, "-o", options, "-l", folder / "log", "-w", "start")
        try:
            yield f"postgresql+psycopg://test@/{{database}}?host={address or folder}"
        finally:
            _run(user, programs / "pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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
