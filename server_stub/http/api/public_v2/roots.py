"""Decides which paths of a `/public/v2` request are files of this server, and with which environment a job runs.

A request names paths of the platform's shared file system. This check is no security boundary: a user who may submit
can run any command as the account of the server. It prevents a path that means a file of another machine from running
an unrelated file of the same name here.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
from pathlib import Path

from client_lib.errors import InvalidRequest
from client_lib.spec.job import JobSpec
from client_lib.spec.wire import CodeInPlace, SubmitRequest, Submitter
from server_stub.settings import Settings

_OF_ANY_LOGIN = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR"),
    *("CONDA_EXE", "CONDA_PREFIX", "CONDA_ENVS_DIRS", "CONDA_ENVS_PATH", "MAMBA_ROOT_PREFIX"),  # to find conda_env
)
"""Variables of the server that such a job gets: a REST request has no environment of its submitter."""


async def place(spec: JobSpec, settings: Settings) -> SubmitRequest:
    """The whole request for a job whose code lies on this server.

    Raises InvalidRequest: there is no such file, or it is outside the folders that this server shares.
    """
    roots, script = _roots(settings), spec.python_script
    first = str(roots[0]) if roots else None  # of relative paths and of commands; on the platform /home/jovyan
    if script is None:
        return SubmitRequest(spec=spec, code=CodeInPlace(), submitter=_submitter(first))
    path = os.path.join(first or "/", script)
    real = await asyncio.to_thread(os.path.realpath, path)  # a network file system may be slow
    if not _shares_everything(settings) and not any(_inside(real, root) for root in roots):
        raise InvalidRequest(
            f"script {path!r} lies outside of the folders that this server shares with /public/v2: "
            f"{', '.join(map(str, roots)) or 'none'}",
            hint="its setting public_v2_roots names them",
        )
    try:
        content = await asyncio.to_thread(Path(real).read_bytes)
    except OSError as error:
        raise InvalidRequest(f"script {path!r} can't be read on this server: {error.strerror}") from error
    code = CodeInPlace(sha256=hashlib.sha256(content).hexdigest())
    return SubmitRequest(spec=spec, code=code, submitter=_submitter(None if os.path.isabs(script) else first))


def _shares_everything(settings: Settings) -> bool:
    """True if no folders are named, and the server has one user, who can read these files anyway."""
    return settings.public_v2_roots is None and not settings.several_users


def _roots(settings: Settings) -> list[Path]:
    return [Path.home()] if _shares_everything(settings) else settings.public_v2_roots or []


def _inside(path: str, root: Path) -> bool:
    """True if the file is below the root; links are followed on both sides."""
    return Path(path).is_relative_to(os.path.realpath(root))


def _submitter(folder: str | None) -> Submitter:
    environment = {name: value for name, value in os.environ.items() if name in _OF_ANY_LOGIN}
    return Submitter(python=sys.executable, environment=environment, working_dir=folder)
