"""The checkpoints of a job on this machine. Programs with the rights of the job work on them
(`client_lib.worker.checkpoint_files`): the server itself follows no name in a folder of a user.
"""

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from client_lib.errors import ServerError
from client_lib.worker.programs import checkpoints_command
from server_stub.runtimes import Pruned
from server_stub.runtimes.local.accounts import Account

_REMOVAL_S = 600.0
"""Longest time of a removal, which may wait for its disk."""
_LOOK_S = 5.0
"""Longest time of a look at what is there."""
_BLOCK = 2**18


class LocalCheckpoints:
    """See server_stub.runtimes.CheckpointFiles."""

    def __init__(self, folder: Path, account: Account | None, python: str) -> None:
        """`account`: runs the job; None: the server's account. `python`: runs the programs."""
        self._folder = folder
        self._python = python
        self._rights: dict[str, Any] = {} if account is None else account.rights
        self._environment = {"PATH": os.defpath, "LC_ALL": "C"}
        self._environment |= {} if account is None else account.environment

    async def gone(self, paths: Sequence[str]) -> Collection[str]:
        found: list[str] = await asyncio.to_thread(self._ask, "gone", {"paths": paths}, _LOOK_S)
        return found

    async def prune(self, keep: int, only: Sequence[str] | None) -> Pruned:
        request = {"folder": str(self._folder), "keep": keep, "only": only}
        return Pruned(**await asyncio.to_thread(self._ask, "prune", request, _REMOVAL_S))

    async def read(self, path: str) -> AsyncGenerator[bytes, None]:
        # in threads: uvloop starts no process of another account
        process = await asyncio.to_thread(self._begin_to_send, path)
        with process:
            assert process.stdout
            assert process.stderr
            try:
                while block := await asyncio.to_thread(process.stdout.read, _BLOCK):
                    yield block
                error = await asyncio.to_thread(process.stderr.read)
                if await asyncio.to_thread(process.wait):
                    raise ServerError(f"{path} can't be read: {_last_line(error.decode())}")
            finally:
                process.kill()

    def _begin_to_send(self, path: str) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(
            checkpoints_command("send", self._python),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
            env=self._environment,
            **self._rights,
        )
        assert process.stdin
        with process.stdin as request:
            request.write(json.dumps({"path": path}).encode())
        return process

    def _ask(self, verb: str, request: Mapping[str, object], limit_s: float) -> Any:
        """The answer of a program. Raises ServerError."""
        try:
            done = subprocess.run(
                checkpoints_command(verb, self._python),
                input=json.dumps(request),
                capture_output=True,
                text=True,
                check=True,
                timeout=limit_s,
                cwd="/",
                env=self._environment,
                **self._rights,
            )
        except subprocess.TimeoutExpired:
            raise ServerError(
                f"the disk of {self._folder} did not answer within {limit_s:.0f} s"
            ) from None
        except subprocess.CalledProcessError as error:
            raise ServerError(
                f"the checkpoints in {self._folder} can't be read: {_last_line(error.stderr)}"
            ) from error
        return json.loads(done.stdout)


def _last_line(text: str) -> str:
    """The error in the output of a Python program."""
    return text.strip().rpartition("\n")[2]
