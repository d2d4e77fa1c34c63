"""Asks nvidia-smi which GPUs there are and who holds their memory. What the answer means is in `devices`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import time

from server_stub.runtimes.local import devices
from server_stub.runtimes.local.devices import GPU_FIELDS, PROCESS_FIELDS, Gpu
from server_stub.runtimes.local.processes import program_of

TIMEOUT_S = 30.0  # a machine with many cards and no persistence daemon takes seconds
FRESH_S = 1.0
_END_S = 1.0


class NvidiaSmiFailed(Exception):
    """It is there, and gives no answer; the message says what it said."""


class Gpus:
    """The GPUs of this machine, as they were when last looked at."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._asked_at = float("-inf")
        self.known: list[Gpu] = []
        self.failure: str | None = None
        """Why nvidia-smi gave no answer when last asked. GPUs known before are still there, but not handed out."""

    async def look(self) -> None:
        """Bring `known` up to date; an answer of the last second is fresh enough. Never raises: see `failure`."""
        if time.monotonic() - self._asked_at < FRESH_S:
            return
        program = shutil.which(self._program)
        self.failure = None
        try:
            if program is not None:
                self.known = await _ask(program)
        except NvidiaSmiFailed as error:
            self.failure = str(error)
        self._asked_at = time.monotonic()


async def _ask(program: str) -> list[Gpu]:
    # one after the other: to break one off as the other has failed would leave its pipe to a loop that may be closed
    gpus = await _answer(program, f"--query-gpu={GPU_FIELDS}")
    processes = await _answer(program, f"--query-compute-apps={PROCESS_FIELDS}")
    try:
        return devices.parse(gpus, processes, {pid: program_of(pid) for pid in devices.pids(processes)})
    except ValueError as error:
        raise NvidiaSmiFailed(str(error)) from error


async def _answer(program: str, query: str) -> str:
    command = [program, query, "--format=csv,noheader,nounits"]
    try:
        child = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
    except OSError as error:  # of another architecture, or no process is left to have
        raise NvidiaSmiFailed(f"{program} could not be started: {error}") from error
    answered = False
    try:
        output, _ = await asyncio.wait_for(child.communicate(), TIMEOUT_S)
        answered = True
    except asyncio.TimeoutError as error:
        raise NvidiaSmiFailed(f"{program} gave no answer in {TIMEOUT_S:.0f} s") from error
    finally:
        if not answered:
            await _end(child)
    text = output.decode("utf-8", "replace")
    if child.returncode:
        raise NvidiaSmiFailed(f"{program} ended with {child.returncode}: {text.strip()}")
    return text


async def _end(child: asyncio.subprocess.Process) -> None:
    """The process, and the pipe to it, which may be open when the process has ended."""
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)  # child.kill() may take its exit status from whoever waits for it
    try:
        await asyncio.wait_for(child.communicate(), _END_S)
    except asyncio.TimeoutError:  # one stuck in its driver never ends
        pass
