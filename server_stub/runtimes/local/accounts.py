"""The accounts of this machine under which the jobs of users run, if the server runs as root, and
the folders of such jobs in the data directory:

    <data>, jobs, jobs/<id>,
    attempts, attempts/<n>, workers      the server's, mode 0711: no account lists or changes them
    workers/<n>, outputs, checkpoints,
    environments/<uid>                   the account's, mode 0700
    attempts/<n>/code.tar.gz, function   the account's copies of what the client has uploaded

The processes of a worker run under the account that owns the worker's folder. Only the server can
change the folder above it, so a restarted server can rely on this owner to find the account of a
running job. If the owner is root, as in a data directory of an earlier version, the processes run
under the account of the server.

The server follows no link in the account's folders (`files.job_dirs`). Programs that write there,
such as the copy of checkpoints, have the rights of the account.
"""

import contextlib
import errno
import os
import pwd
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from client_lib import durable
from client_lib.errors import InvalidRequest
from client_lib.launcher_protocol.plan import WorkerPlan
from client_lib.worker.programs import launcher_command
from server_stub.files.job_dirs import attempt_dir
from server_stub.files.outputs import OUTPUTS
from server_stub.runtimes import CHECKPOINTS, Attempt

_WAY_OUT = (
    'make it (useradd), name another one in the users file (account = "..."), or start with '
    "--insecure-shared-uid"
)
# in which an account must have read files: their file system may not answer, as one of FUSE can
READ_S = 5.0
_CAN_READ = (
    'while IFS= read -r path; do [ -r "$path" ] && { [ ! -d "$path" ] || [ -x "$path" ]; }; '
    "printf %s $?; done"
)
_ENTERED = ("jobs", "environments")
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
        """Arguments for subprocess: the new process has the rights of
        this account, and no others.
        """
        return {"user": self.uid, "group": self.gid, "extra_groups": self.groups, "umask": 0o022}

    def own(self, path: Path) -> None:
        """Make the account the owner of a file or folder; of a link, not of its target."""
        os.chown(path, self.uid, self.gid, follow_symlinks=False)

    def run(
        self, command: list[str], limit_s: float | None = None, stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, with the rights of the account and nothing of the server's
        environment. Raises subprocess.TimeoutExpired: it was killed after `limit_s`."""
        environment = {"PATH": os.defpath, "LC_ALL": "C"} | self.environment
        return subprocess.run(
            command,
            env=environment,
            cwd="/",
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=limit_s,
            **self.rights,
        )

    def can_read(self, paths: Sequence[str]) -> list[bool]:
        """Find out for each path if the account can read this file, or list and enter this folder;
        a path that takes longer than READ_S counts as unreadable. Waits for one process, as a user
        may name many paths."""
        lines = "".join(path.replace("\n", "?") + "\n" for path in paths)
        try:
            codes = self.run(["/bin/sh", "-c", _CAN_READ], READ_S, lines).stdout if paths else ""
        except subprocess.TimeoutExpired as error:
            codes = os.fsdecode(error.stdout or b"")
        return [code == "0" for code in codes.ljust(len(paths), "1")]

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
    """The account that owns a worker's folder; None: this server's own account."""
    there = os.lstat(folder)
    if there.st_uid == os.geteuid():
        return None
    try:
        return _account(pwd.getpwuid(there.st_uid))
    except KeyError:  # it was removed while its job ran
        return Account(str(there.st_uid), there.st_uid, there.st_gid, (there.st_gid,), "/")


def of_user(user: str, names: Mapping[str, str]) -> Account:
    """The account of one user. Raises InvalidRequest: the user has none."""
    if user not in names:
        raise InvalidRequest(
            f"the users file has no user {user}, so there is no account for the job"
        )
    return of_users({user: names[user]})[user]


def of_users(names: Mapping[str, str]) -> dict[str, Account]:
    """The account of each user. `names`: user -> name of the account. Raises InvalidRequest: there
    is no such account, it is root, or two users have one account."""
    accounts: dict[str, Account] = {}
    missing = []
    for user, name in names.items():
        try:
            accounts[user] = _account(pwd.getpwnam(name))
        except KeyError:
            missing.append(user if user == name else f"{user} (account {name})")
    if missing:
        raise InvalidRequest(f"this machine has no account for {', '.join(missing)}", hint=_WAY_OUT)
    users: dict[int, str] = {}
    for user, account in accounts.items():
        if account.uid == 0:
            raise InvalidRequest(f"the jobs of {user} would run as root", hint=_WAY_OUT)
        if (other := users.setdefault(account.uid, user)) != user:
            raise InvalidRequest(
                f"{other} and {user} have the same account, {account.name}", hint=_WAY_OUT
            )
    return accounts


def _account(entry: pwd.struct_passwd) -> Account:
    groups = tuple(os.getgrouplist(entry.pw_name, entry.pw_gid))
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid, groups, entry.pw_dir)


# --- folders


def open_data_dir(data_dir: Path) -> None:
    """Let all accounts enter the data directory, after everything else in it was made private."""
    for entry in os.scandir(data_dir):
        if entry.name not in _ENTERED and not entry.is_symlink():
            os.chmod(entry.path, stat.S_IMODE(entry.stat().st_mode) & 0o700)
    for folder in (data_dir / name for name in _ENTERED):
        _let_enter(folder)
        # of an earlier version, or of a server that did not separate its users
        for entry in os.scandir(folder):
            if not entry.is_symlink() and entry.stat().st_mode & 0o066:
                os.chmod(entry.path, 0o700)
    data_dir.chmod(0o711)


def with_own_copies(attempt: Attempt) -> Attempt:
    """The attempt with the paths of the copies of code and function that `prepare` makes for it."""
    folder = attempt_dir(attempt.job_dir, attempt.number)
    return replace(
        attempt,
        snapshot=folder / "code.tar.gz" if attempt.snapshot else None,
        function=folder / "function" if attempt.function else None,
    )


def prepare(attempt: Attempt, plan: WorkerPlan, account: Account) -> None:
    """Make all folders of an attempt but the workers'. Files of an interrupted start are removed.
    Raises OSError, also if fewer bytes of the disk would stay free than the plan says."""
    folder = attempt_dir(attempt.job_dir, attempt.number)
    if folder.exists():
        shutil.rmtree(folder)
    for each in (attempt.job_dir, folder.parent, folder, folder / "workers"):
        _let_enter(each)
    give(attempt.job_dir / OUTPUTS, account)
    if plan.environments_dir:
        give(Path(plan.environments_dir), account)
    if attempt.spec.checkpoint_dir is None:
        _make_checkpoints(attempt, account, plan.keep_free_bytes)
    copies = with_own_copies(attempt)
    for source, copy in ((attempt.snapshot, copies.snapshot), (attempt.function, copies.function)):
        if source and copy:
            _copy(source, copy, account, plan.keep_free_bytes)


def hand_over(worker_dir: Path, account: Account) -> None:
    """Give a worker's folder with the files in it to the account."""
    for entry in os.scandir(worker_dir):
        account.own(Path(entry.path))
    account.own(worker_dir)


def _let_enter(folder: Path) -> None:
    folder.mkdir(mode=0o711, exist_ok=True)
    folder.chmod(0o711)


def give(folder: Path, account: Account) -> None:
    """Make a folder of the account. If the server, or a job that ran as root, has made the folder,
    it is given to the account with all files in it. Raises PermissionError: it belongs to another
    account."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    owner = folder.lstat().st_uid
    if owner == account.uid:
        return
    if owner != os.geteuid():
        raise PermissionError(
            errno.EPERM,
            f"the folder belongs to uid {owner}, and the account {account.name} can't use it",
            folder,
        )
    for _, folders, files, descriptor in os.fwalk(folder):
        for name in (*folders, *files):
            os.chown(name, account.uid, account.gid, dir_fd=descriptor, follow_symlinks=False)
    folder.chmod(0o700)
    account.own(folder)


def _make_checkpoints(attempt: Attempt, account: Account, keep_free: int) -> None:
    """Make the folder for checkpoints, at the first start with a copy of an earlier job's
    checkpoints.
    """
    checkpoints = attempt.job_dir / CHECKPOINTS
    if source := checkpoints_to_copy(attempt, checkpoints):
        _let_enter(source.parent)
        give(source, account)
        durable.check_room(str(attempt.job_dir), durable.size_of(str(source)), keep_free)
        incomplete = attempt.job_dir / f"{CHECKPOINTS}.new"
        shutil.rmtree(incomplete, ignore_errors=True)
        give(incomplete, account)
        copied = account.run(["cp", "-a", f"{source}/.", str(incomplete)])
        if copied.returncode:
            raise OSError(
                f"the checkpoints of the job before can't be copied: {copied.stderr.strip()}"
            )
        incomplete.rename(checkpoints)
    give(checkpoints, account)


def _copy(source: Path, target: Path, account: Account, keep_free: int) -> None:
    durable.check_room(str(target.parent), source.stat().st_size, keep_free)
    with (
        open(source, "rb") as file,
        open(target, "xb", opener=lambda path, flags: os.open(path, flags, 0o400)) as copy,
    ):
        shutil.copyfileobj(file, copy)
    account.own(target)


def checkpoints_to_copy(attempt: Attempt, checkpoints: Path) -> Path | None:
    """The folder that `checkpoints` begins as a copy of; None: there is none, or `checkpoints`
    exists. Raises FileNotFoundError: the job that the user names in `checkpoint_from` was deleted.
    """
    source = attempt.checkpoints_from
    if source is None or attempt.spec.checkpoint_dir is not None or checkpoints.exists():
        return None
    if attempt.spec.checkpoint_from is not None and not source.parent.exists():
        raise FileNotFoundError(
            f"the checkpoints of {attempt.checkpoints_name} are gone: that job was deleted"
        )
    return source if source.is_dir() else None
