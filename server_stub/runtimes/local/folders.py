"""Folders of this machine: those that a job names, and those of a job that runs under an account of its user.

The latter, in the data directory:

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from client_lib.errors import InvalidRequest
from client_lib.worker import disk
from client_lib.worker.plan import WorkerPlan
from client_lib.worker.prepare import copy_folder
from server_stub.files.outputs import OUTPUTS
from server_stub.runtimes import CHECKPOINTS, Attempt, attempt_dir
from server_stub.runtimes.fields import parse_volume
from server_stub.runtimes.local.accounts import Account

_ENTERED = ("jobs", "environments")
Sees = Callable[[str], bool]
"""True if the processes of a job can read this path; the server itself may see more."""


# --- folders that a job names


def find_prefix(env: str, environment: Mapping[str, str], working_dir: str | None, sees: Sees = os.path.exists) -> Path:
    """The folder of the environment called `env`, or at the path `env`, as the submitter's conda would find it. Nothing
    is run: conda's own Python takes a second to start.

    Raises InvalidRequest, with the folders that were searched.
    """
    looked = list(_candidates(env, environment, working_dir))
    for prefix in looked:
        if sees(str(prefix / "bin" / "python")):
            return prefix
    raise InvalidRequest(
        f"conda_env={env!r}: no such environment on this machine; looked for bin/python in "
        + (", ".join(map(str, looked)) or "no folder, as the submitter's environment names no conda"),
        hint="give the environment's path, as `conda env list` shows it",
    )


def _candidates(env: str, environment: Mapping[str, str], working_dir: str | None) -> Iterator[Path]:
    if os.sep in env or env.startswith("~"):
        home = environment.get("HOME", "~")
        yield Path(working_dir or "/", home + env[1:] if env.startswith("~/") else env)
        return
    roots = dict.fromkeys(_roots(environment))
    if env in ("base", "root"):
        yield from roots
    for folder in environment.get("CONDA_ENVS_DIRS", environment.get("CONDA_ENVS_PATH", "")).split(os.pathsep):
        if folder:
            yield Path(folder, env)
    for root in roots:
        yield root / "envs" / env
    if "HOME" in environment:
        yield Path(environment["HOME"], ".conda", "envs", env)


def _roots(environment: Mapping[str, str]) -> Iterator[Path]:
    """Installations: of the conda in use, of the active environment, of micromamba."""
    if "CONDA_EXE" in environment:
        yield Path(environment["CONDA_EXE"]).parent.parent
    if "CONDA_PREFIX" in environment:
        prefix = Path(environment["CONDA_PREFIX"])
        yield prefix.parent.parent if prefix.parent.name == "envs" else prefix
    if "MAMBA_ROOT_PREFIX" in environment:
        yield Path(environment["MAMBA_ROOT_PREFIX"])


def check_volumes(volumes: Sequence[str], sees: Sees = os.path.exists) -> list[str]:
    """Notices for volumes. Nothing is mounted on one machine, so the path must be a folder of this machine.

    Raises InvalidRequest: not of the form `name:path[:ro]`, or no such folder.
    """
    notices = []
    for volume in volumes:
        name, path, read_only = parse_volume(volume)
        if not sees(f"{path}/."):
            raise InvalidRequest(
                f"volume {name!r}: this machine has no folder {path}; locally nothing is mounted",
                hint=f"create {path}, or leave the volume out",
            )
        if read_only:
            notices.append(f"volume {name!r}: {path} is this machine's own folder; `ro` is not enforced")
    return notices


def copy_checkpoints(attempt: Attempt, checkpoints: Path, keep_free: int) -> None:
    """Copy the checkpoints of an earlier job to `checkpoints`, unless the job names a directory or that exists. May
    take long.

    Raises OSError, also if fewer than `keep_free` bytes of the disk would stay free.
    """
    if source := checkpoints_to_copy(attempt, checkpoints):
        copy_folder(str(source), str(checkpoints), keep_free)


def checkpoints_to_copy(attempt: Attempt, checkpoints: Path) -> Path | None:
    """The folder that `checkpoints` begins as a copy of; None: there is none, or `checkpoints` exists.

    Raises FileNotFoundError: the job that the user names in `checkpoint_from` was deleted.
    """
    source = attempt.checkpoints_from
    if source is None or attempt.spec.checkpoint_dir is not None or checkpoints.exists():
        return None
    if attempt.spec.checkpoint_from is not None and not source.parent.exists():
        raise FileNotFoundError(f"the checkpoints of {attempt.checkpoints_name} are gone: that job was deleted")
    return source if source.is_dir() else None


# --- folders of accounts


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
