"""Folders of this machine that a job names: its conda environment, its volumes, the checkpoints of an earlier job.

`conda run` and `conda activate` start conda's own Python and take a second; an environment is a folder with a python,
so it is looked up without running anything.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from client_lib.errors import InvalidRequest
from client_lib.worker.prepare import copy_folder
from server_stub.runtimes import Attempt
from server_stub.runtimes.fields import parse_volume

Sees = Callable[[str], bool]
"""True if the processes of a job can read this path; the server itself may see more."""


def find_prefix(env: str, environment: Mapping[str, str], working_dir: str | None, sees: Sees = os.path.exists) -> Path:
    """The folder of the environment called `env`, or at the path `env`, as the submitter's conda would find it.

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
