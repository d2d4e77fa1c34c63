"""The checkpoints of a job on this machine. Programs with the rights of the job work on them
(`client_lib.worker.checkpoint_files`): the server itself follows no name in a folder of a user.
"""

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from client_lib.errors import ServerError
from client_lib.worker.programs import checkpoints_command
from server_stub.runtimes import Pruned
from server_stub.runtimes.local.accounts import Account
from server_stub.turns import finished

T = TypeVar("T")

_REMOVAL_S = 600.0
"""Longest time of a removal, which may wait for its disk."""
_LOOK_S = 5.0
"""Longest time of a look at what is there."""
_SILENCE_S = 30.0
"""Longest time without a block of an archive."""
_BLOCK = 2**18
_THREADS = ThreadPoolExecutor(16, thread_name_prefix="checkpoints")
"""Apart from all others: a thread may wait long for a disk."""


class LocalCheckpoints:
    """See server_stub.runtimes.CheckpointFiles."""

    def __init__(
        self, folder: Path, account: Account | None, python: str, best: str | None = None
    ) -> None:
        """`account`: runs the job; None: the server's account. `python`: runs the programs. `best`:
        `max:METRIC` or `min:METRIC`, by which the best one stays; None: the job names none."""
        self._folder = folder
        self._best = best
        self._python = python
        self._rights: dict[str, Any] = {} if account is None else account.rights
        self._environment = {"PATH": os.defpath, "LC_ALL": "C"}
        self._environment |= {} if account is None else account.environment

    async def gone(self, paths: Sequence[str]) -> Collection[str]:
        asking = _THREADS.submit(self._ask, "gone", {"paths": paths}, _LOOK_S)
        found: list[str] = await finished(asking)
        return found

    async def prune(self, keep: int, only: Sequence[str] | None) -> Pruned:
        folder = str(self._folder)
        request = {"folder": folder, "keep": keep, "best": self._best, "only": only}
        asking = _THREADS.submit(self._ask, "prune", request, _REMOVAL_S)
        return Pruned(**await finished(asking))

    async def read(self, path: str) -> AsyncGenerator[bytes, None]:
        # in threads: uvloop starts no process of another account
        process = await self._soon(lambda: self._begin_to_send(path))
        output, errors = process.stdout, process.stderr
        assert output
        assert errors
        try:
            while block := await self._soon(lambda: output.read(_BLOCK)):
                yield block
            error = await self._soon(errors.read)
            if await self._soon(process.wait):
                raise ServerError(f"{path} can't be read: {_last_line(error.decode())}")
        finally:
            process.kill()
            # nobody waits for it: a process that waits for its disk ends later
            _THREADS.submit(_close, process)

    async def _soon(self, work: Callable[[], T]) -> T:
        """The result of work in a thread. Raises ServerError: it lasts too long."""
        try:
            return await asyncio.wait_for(asyncio.wrap_future(_THREADS.submit(work)), _SILENCE_S)
        except asyncio.TimeoutError:
            raise self._no_answer(_SILENCE_S) from None

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
            raise self._no_answer(limit_s) from None
        except subprocess.CalledProcessError as error:
            raise ServerError(
                f"the checkpoints in {self._folder} can't be read: {_last_line(error.stderr)}"
            ) from error
        return json.loads(done.stdout)

    def _no_answer(self, limit_s: float) -> ServerError:
        return ServerError(f"the disk of {self._folder} did not answer within {limit_s:.0f} s")


def _close(process: "subprocess.Popen[bytes]") -> None:
    """Close the pipes of a process, and wait for its end."""
    with process:
        pass


def _last_line(text: str) -> str:
    """The error in the output of a Python program."""
    return text.strip().rpartition("\n")[2]
