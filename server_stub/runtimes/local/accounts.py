"""The accounts of this machine under which the jobs of users run, if the server runs as root.

The processes of a worker run under the account that owns the worker's folder. Only the server can change the folder
above it, so a restarted server can rely on this owner to find the account of a running job. If the owner is root, as in
a data directory of an earlier version, the processes run under the account of the server.
"""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from client_lib.errors import InvalidRequest
from client_lib.worker.directory import launcher_command

_WAY_OUT = (
    'make it (useradd), name another one in the users file (account = "..."), or start with --insecure-shared-uid'
)
READ_S = 5.0  # in which an account must have read a file: its file system may not answer, as one of FUSE can
_USAGE = 2  # exit code of a launcher without arguments


class Account(NamedTuple):
    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    """All of its groups."""
    home: str

    @property
    def environment(self) -> dict[str, str]:
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name}

    @property
    def rights(self) -> dict[str, Any]:
        """Arguments for subprocess: the new process has the rights of this account, and no others."""
        return {"user": self.uid, "group": self.gid, "extra_groups": self.groups, "umask": 0o022}

    def own(self, path: Path) -> None:
        """Make the account the owner of a file or folder; of a link, not of its target."""
        os.chown(path, self.uid, self.gid, follow_symlinks=False)

    def run(self, command: list[str], limit_s: float | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, with the rights of the account and nothing of the server's environment.

        Raises subprocess.TimeoutExpired: it was killed after `limit_s`.
        """
        environment = {"PATH": os.defpath, "LC_ALL": "C"} | self.environment
        return subprocess.run(
            command,
            env=environment,
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
            timeout=limit_s,
            **self.rights,
        )

    def can_read(self, path: str) -> bool:
        """True if the account can read this file, or list and enter this folder, within READ_S. Starts a process and
        blocks."""
        command = ["/bin/sh", "-c", '[ -r "$1" ] && { [ ! -d "$1" ] || [ -x "$1" ]; }', "sh", path]
        try:
            return self.run(command, READ_S).returncode == 0
        except subprocess.TimeoutExpired:
            return False

    def why_unusable(self, data_dir: Path, python: str) -> str | None:
        """The reason why no job can run under the account; None: it can. Starts two processes."""
        if self.run(["/bin/sh", "-c", 'cd -- "$1"', "sh", str(data_dir)]).returncode:
            return f"the account {self.name} can't enter {data_dir}"
        try:
            launcher = self.run(launcher_command("", python)[:-1])
        except OSError as error:
            return f"the account {self.name} can't run {python}: {error.strerror}"
        if launcher.returncode == _USAGE:
            return None
        last = launcher.stderr.strip().rpartition("\n")[2]
        return f"the account {self.name} can't run the worker launcher with {python}: {last}"


def are_possible() -> bool:
    """True if this process may start others under any account, and kill exactly these."""
    return sys.platform == "linux" and os.geteuid() == 0 and hasattr(os, "pidfd_open")


def owner_of(folder: Path) -> Account | None:
    """The account that owns a worker's folder; None: it is that of this server."""
    there = os.lstat(folder)
    if there.st_uid == os.geteuid():
        return None
    try:
        return _account(pwd.getpwuid(there.st_uid))
    except KeyError:  # it was removed while its job ran
        return Account(str(there.st_uid), there.st_uid, there.st_gid, (there.st_gid,), "/")


class UserAccounts:
    """Finds the accounts of users. `names` returns the name of each user's account."""

    def __init__(self, names: Callable[[], Mapping[str, str]]) -> None:
        self._names = names

    def of(self, user: str) -> Account:
        """Raises InvalidRequest: the user has no account."""
        name = self._names().get(user)
        if name is None:
            raise InvalidRequest(f"the users file has no user {user}, so there is no account for the job")
        return of_users({user: name})[user]

    def all(self) -> list[Account]:
        """Raises InvalidRequest: a user has no account."""
        return list(of_users(self._names()).values())


def of_users(names: Mapping[str, str]) -> dict[str, Account]:
    """The account of each user. `names`: user -> name of the account.

    Raises InvalidRequest: there is no such account, it is root, or two users have the same.
    """
    entries = {user: _entry(name) for user, name in names.items()}
    missing = [_shown(user, names[user]) for user, entry in entries.items() if entry is None]
    if missing:
        raise InvalidRequest(f"this machine has no account for {', '.join(missing)}", hint=_WAY_OUT)
    accounts = {user: _account(entry) for user, entry in entries.items() if entry}
    users: dict[int, str] = {}
    for user, account in accounts.items():
        if account.uid == 0:
            raise InvalidRequest(f"the jobs of {user} would run as root", hint=_WAY_OUT)
        if (other := users.setdefault(account.uid, user)) != user:
            raise InvalidRequest(f"{other} and {user} have the same account, {account.name}", hint=_WAY_OUT)
    return accounts


def _shown(user: str, account: str) -> str:
    return user if user == account else f"{user} (account {account})"


def _entry(name: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None


def _account(entry: pwd.struct_passwd) -> Account:
    groups = tuple(os.getgrouplist(entry.pw_name, entry.pw_gid))
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid, groups, entry.pw_dir)
