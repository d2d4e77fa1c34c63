"""The folders of a job that runs under an account of its user.

    <data>, jobs, jobs/<id>, attempts, attempts/<n>, workers   the server's, mode 0711: no account lists or changes them
    workers/<n>, outputs, checkpoints, environments/<uid>      the account's, mode 0700
    attempts/<n>/code.tar.gz, function                         the account's copies of what the client has uploaded

The server follows no link in the account's folders (`files.owned`). Programs that write there, such as the copy of
checkpoints, have the rights of the account.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from dataclasses import replace
from pathlib import Path

from client_lib.worker import disk
from client_lib.worker.plan import WorkerPlan
from server_stub.files.outputs import OUTPUTS
from server_stub.runtimes import CHECKPOINTS, Attempt, attempt_dir
from server_stub.runtimes.local.accounts import Account
from server_stub.runtimes.local.job_folders import checkpoints_to_copy

_ENTERED = ("jobs", "environments")


def open_data_dir(data_dir: Path) -> None:
    """Let all accounts enter the data directory, after everything else in it was made private."""
    for entry in os.scandir(data_dir):
        if entry.name not in _ENTERED and not entry.is_symlink():
            os.chmod(entry.path, stat.S_IMODE(entry.stat().st_mode) & 0o700)
    for folder in (data_dir / name for name in _ENTERED):
        _let_enter(folder)
        for entry in os.scandir(folder):  # of an earlier version, or of a server that did not separate its users
            if not entry.is_symlink() and entry.stat().st_mode & 0o066:
                os.chmod(entry.path, 0o700)
    data_dir.chmod(0o711)


def with_own_copies(attempt: Attempt) -> Attempt:
    """The attempt with paths of its own copies of code and function, which `prepare` makes."""
    folder = attempt_dir(attempt.job_dir, attempt.number)
    return replace(
        attempt,
        snapshot=folder / "code.tar.gz" if attempt.snapshot else None,
        function=folder / "function" if attempt.function else None,
    )


def prepare(attempt: Attempt, plan: WorkerPlan, account: Account) -> None:
    """Make all folders but those of the workers. Files of an interrupted start are removed.

    Raises OSError, also if fewer bytes of the disk would stay free than the plan says.
    """
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
    """Make a folder of the account. The account also becomes the owner of a folder of root, which the server or a job
    that ran as root has made, and of all files in it.

    Raises PermissionError: it belongs to another account.
    """
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    owner = folder.lstat().st_uid
    if owner == account.uid:
        return
    if owner != os.geteuid():
        raise PermissionError(
            errno.EPERM, f"the folder belongs to uid {owner}, and the account {account.name} can't use it", folder
        )
    for _, folders, files, descriptor in os.fwalk(folder):
        for name in (*folders, *files):
            os.chown(name, account.uid, account.gid, dir_fd=descriptor, follow_symlinks=False)
    folder.chmod(0o700)
    account.own(folder)


def _make_checkpoints(attempt: Attempt, account: Account, keep_free: int) -> None:
    """Make the folder for checkpoints, at the first start with a copy of those of an earlier job."""
    checkpoints = attempt.job_dir / CHECKPOINTS
    if source := checkpoints_to_copy(attempt, checkpoints):
        _let_enter(source.parent)
        give(source, account)
        disk.check_room(str(attempt.job_dir), disk.size_of(str(source)), keep_free)
        incomplete = attempt.job_dir / f"{CHECKPOINTS}.new"
        shutil.rmtree(incomplete, ignore_errors=True)
        give(incomplete, account)
        copied = account.run(["cp", "-a", f"{source}/.", str(incomplete)])
        if copied.returncode:
            raise OSError(f"the checkpoints of the job before can't be copied: {copied.stderr.strip()}")
        incomplete.rename(checkpoints)
    give(checkpoints, account)


def _copy(source: Path, target: Path, account: Account, keep_free: int) -> None:
    disk.check_room(str(target.parent), source.stat().st_size, keep_free)
    with open(source, "rb") as file, open(target, "xb", opener=lambda path, flags: os.open(path, flags, 0o400)) as copy:
        shutil.copyfileobj(file, copy)
    account.own(target)
