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


class Roots:
    """The folders of one server that may hold code."""

    def __init__(self, roots: list[Path] | None, *, everything: bool) -> None:
        """`everything`: without roots, allow all files that the server can read (it has one user)."""
        self._everything = everything and roots is None
        self._roots = [Path.home()] if self._everything else list(roots or ())

    @classmethod
    def of(cls, settings: Settings) -> Roots:
        return cls(settings.public_v2_roots, everything=settings.users_file is None)

    async def place(self, spec: JobSpec) -> SubmitRequest:
        """The whole request for a job whose code lies on this server.

        Raises InvalidRequest: there is no such file, or it is outside the folders that this server shares.
        """
        script = spec.python_script
        if script is None:
            return SubmitRequest(spec=spec, code=CodeInPlace(), submitter=_submitter(self._folder))
        path = os.path.join(self._folder or "/", script)
        digest = await asyncio.to_thread(self._digest, path)  # a network file system may be slow
        folder = None if os.path.isabs(script) else self._folder
        return SubmitRequest(spec=spec, code=CodeInPlace(sha256=digest), submitter=_submitter(folder))

    @property
    def _folder(self) -> str | None:
        """The folder of relative paths and of commands; on the platform /home/jovyan."""
        return str(self._roots[0]) if self._roots else None

    def _digest(self, path: str) -> str:
        real = os.path.realpath(path)
        if not self._everything and not any(_inside(real, root) for root in self._roots):
            raise InvalidRequest(
                f"script {path!r} lies outside of the folders that this server shares with /public/v2: {self._names()}",
                hint="its setting public_v2_roots names them",
            )
        try:
            with open(real, "rb") as file:
                return hashlib.sha256(file.read()).hexdigest()
        except OSError as error:
            raise InvalidRequest(f"script {path!r} can't be read on this server: {error.strerror}") from error

    def _names(self) -> str:
        return ", ".join(map(str, self._roots)) or "none"


def _inside(path: str, root: Path) -> bool:
    """True if the file is below the root; links are followed on both sides."""
    return Path(path).is_relative_to(os.path.realpath(root))


def _submitter(folder: str | None) -> Submitter:
    environment = {name: value for name, value in os.environ.items() if name in _OF_ANY_LOGIN}
    return Submitter(python=sys.executable, environment=environment, working_dir=folder)
