"""Runs nvidia-smi to list the GPUs and the processes that hold their memory; `devices` parses its output."""

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
    """nvidia-smi exists but fails; the message holds its output."""


class Gpus:
    """The GPUs of this machine at the last call of `look`."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._asked_at = float("-inf")
        self.known: list[Gpu] = []
        self.failure: str | None = None
        """The reason why nvidia-smi failed last. The GPUs known before stay known, but are not handed out."""

    async def look(self) -> None:
        """Update `known`, at most once a second. Never raises: see `failure`."""
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
    # one after the other: cancelling one when the other fails would leave its pipe to a loop that may be closed
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
    except OSError as error:  # of another architecture, or the limit of processes is reached
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
    """End the process and close its pipe, which may be open after the process has ended."""
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)  # child.kill() may take the exit status away from the task that waits
    try:
        await asyncio.wait_for(child.communicate(), _END_S)
    except asyncio.TimeoutError:  # a process stuck in the driver never ends
        pass
