"""The runtime's side of one worker launcher (`client_lib.worker`): started or found again, followed to its end.

A launcher is alive if its connection is open or its lock is held; a pid alone proves nothing.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from client_lib.errors import Conflict
from client_lib.spec.states import Reason
from client_lib.worker import control, disk
from client_lib.worker.directory import ALREADY_RUNS, Directory, is_held, last_line, launcher_command, read_json
from client_lib.worker.outcome import START_FAILED
from client_lib.worker.preparation import reason_of
from client_lib.worker.report import Report, storable
from client_lib.worker.system import OPEN_FILES
from server_stub.files.owned import open_to_append, opener
from server_stub.runtimes import STACKS_S
from server_stub.runtimes.local.accounts import Account, owner_of
from server_stub.runtimes.local.processes import LAUNCHER_SWEEPS, kill, kill_leftovers, peer_uid
from server_stub.runtimes.local.warm import WarmPool
from server_stub.runtimes.verdict import Stage, WorkerStatus
from server_stub.worker_gateway import StackDump, quiet_since
from server_stub.worker_gateway import report as reports

_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "CLIENT_LIB_PORTABLE", OPEN_FILES)

_EVENTS = {control.READY: Stage.READY, control.STARTED: Stage.STARTED}


class Launcher:
    """Controls one launcher. `changed` is called after each change of `worker`."""

    def __init__(self, directory: Path, number: int, host: str, changed: Callable[[], None]) -> None:
        self.worker = WorkerStatus(number, Stage.STARTING, host)
        self._path = directory
        self._files = Directory(str(directory))
        self._opener = opener(directory)
        self._changed = changed
        self._instructions: list[bytes] = []
        self._writer: asyncio.StreamWriter | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._exit_code: int | None = None
        self._spawn_error: OSError | None = None
        self._damage = ""
        self._takes_stacks = False
        self._stacks_taken = asyncio.Event()

    def was_launched(self) -> bool:
        """A launcher has held the lock of this directory: no other may start there."""
        return read_json(self._files.lock, self._opener) is not None

    def has_begun(self) -> bool:
        return os.path.exists(self._files.processes)

    async def fork(self, pool: WarmPool) -> str | None:
        """Fork the launcher from a warm pool. Returns None on success, otherwise the reason of the failure."""
        return await pool.launch(self._files.path)

    def spawn(self, python: str) -> None:
        """Start the launcher; blocks for a millisecond. If one runs already, the new one exits at once.

        `follow` reports a failure to start.
        """
        try:
            account = owner_of(self._path)
            with os.fdopen(open_to_append(Path(self._files.output)), "ab") as output:
                self._child = subprocess.Popen(
                    launcher_command(self._files.path, python),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    cwd=self._files.path,
                    env=_environment(account),
                    start_new_session=True,  # it outlives the server, and no Ctrl-C of a terminal reaches it
                    **account.rights if account else {},
                )
        except OSError as error:
            self._spawn_error = error

    def instruct(self, line: bytes) -> None:
        """Send it now or as soon as there is a connection, and again after a reconnect (instructions may repeat)."""
        if line not in self._instructions:
            self._instructions.append(line)
            if self._writer is not None:
                self._writer.write(line)

    async def stacks(self) -> StackDump:
        """Order the stacks of its ranks, and wait for them."""
        number, writer = self.worker.number, self._writer
        if self.worker.stage is not Stage.STARTED:
            return StackDump(number, [], f"worker {number} runs no ranks now")
        if writer is None:
            return StackDump(number, [], f"the launcher of worker {number} can't be reached now")
        if not self._takes_stacks:
            return StackDump(number, [], f"the launcher of worker {number} is of a version that can't take stacks")
        self._stacks_taken.clear()
        writer.write(control.order(control.STACKS))
        try:
            await asyncio.wait_for(self._stacks_taken.wait(), STACKS_S)
        except asyncio.TimeoutError:
            return StackDump(number, [], f"the launcher of worker {number} did not answer within {STACKS_S:g} s")
        taken = await asyncio.to_thread(read_json, self._files.stacks_taken, self._opener)
        if taken is None:
            return StackDump(number, [], f"the launcher of worker {number} could not take stacks")
        return StackDump(number, taken.get("processes") or [])

    def processes(self) -> int:
        """The number of processes that its plan has for each worker."""
        plan = read_json(self._files.plan, self._opener) or {}
        return int(plan.get("processes_per_worker", 1))

    def begin_session(self, request: Mapping[str, Any]) -> socket.socket:
        """A connection that the launcher has made a session; blocks. Raises Conflict."""
        try:
            connection = self._checked(control.connect(self._files.control))
        except OSError as error:
            raise Conflict("its launcher can't be reached now") from error
        try:
            control.begin_session(connection, request)
        except OSError as error:
            connection.close()
            raise Conflict(str(error)) from error
        return connection

    def kill(self) -> None:
        """Send SIGKILL to a launcher that does not answer; its ranks die with it."""
        if self._child is not None:
            self._child.kill()
            return
        holder = read_json(self._files.lock, self._opener)
        if holder and is_held(self._files.lock, self._opener):
            kill(holder, self._path)

    async def destroy(self) -> None:
        """Kill the launcher and all processes that it started; returns when none is alive."""
        self.kill()
        await self._sweep()

    async def follow(self) -> None:
        """Return when the worker is over."""
        while True:
            connection = await self._connected()
            if connection is None or await self._listen(connection):
                break
        await self._settle()

    async def reap(self) -> None:
        """Return when the launcher's process has ended."""
        for pause in _pauses():
            if self._child is None or self._child.poll() is not None:
                return
            await asyncio.sleep(pause)

    def lose_with_machine(self) -> None:
        """Read the report after a reboot of the machine. The worker is lost if there is none, or if it says that the
        worker was stopped, because the shutdown of the machine did that."""
        report = self._report()
        self.give_up_reserve()
        if report is not None and report["reason"] != Reason.CANCELLED:
            self._become(Stage.ENDED, report=report)
        else:
            why = "the machine was rebooted while the job ran"
            self._become(Stage.LOST, lost_because=why, lost_reason=Reason.NODE_LOST)

    async def _connected(self) -> socket.socket | None:
        """A connection; None: the launcher has ended."""
        for pause in _pauses():
            connection = self._connect()
            if connection is not None or self._is_over():
                return connection
            await asyncio.sleep(pause)
        return None

    def _connect(self) -> socket.socket | None:
        if not os.path.exists(self._files.control):  # much cheaper than a connection
            return None
        try:
            return self._checked(control.connect(self._files.control))
        except OSError:  # it does not listen yet, or no more: the lock decides
            return None

    def _checked(self, connection: socket.socket) -> socket.socket:
        """The connection to a launcher of the folder's owner. Raises ConnectionRefusedError: another
        account listens there."""
        owner = os.lstat(self._path).st_uid
        if owner != os.geteuid() and peer_uid(connection) != owner:
            connection.close()
            raise ConnectionRefusedError(f"{self._files.control} belongs to another account")
        return connection

    def _is_over(self) -> bool:
        return os.path.exists(self._files.report) or self._is_dead()

    def _is_dead(self) -> bool:
        if self._child is not None:
            self._exit_code = self._child.poll()
            if self._exit_code is None:
                return False  # it starts; a check of the lock could make it fail
            self._child = None
        return not is_held(self._files.lock, self._opener)

    async def _listen(self, connection: socket.socket) -> bool:
        """Read events. Returns True after the event of the worker's end, False at end of file."""
        reader, self._writer = await asyncio.open_unix_connection(sock=connection)
        lines = control.Lines()
        try:
            self._writer.writelines(self._instructions)
            while data := await reader.read(4096):
                for message in lines.feed(data):
                    if message.get("event") == control.ENDED:
                        self._writer.write(control.order(control.EXIT))
                        return True
                    self._handle(storable(message))
        except ConnectionError:  # the same as end of file: the lock decides
            pass
        finally:
            self._writer.close()
            self._writer = None
        return False

    def _handle(self, message: control.Message) -> None:
        stage = _EVENTS.get(str(message.get("event")))
        if message.get("event") == control.STACKS:
            self._stacks_taken.set()
        if stage is Stage.STARTED:
            self._takes_stacks = bool(message.get("stacks"))
            known = {name: message.get(name) for name in ("fresh_because", "threads")}
            self._become(stage, warm=bool(message.get("warm")), **known)
        elif message.get("event") == control.QUIET:
            with suppress(ValueError, TypeError, AttributeError):  # processes of the job may send anything
                told = {int(rank): float(seconds) for rank, seconds in message.get("ranks", {}).items()}
                self._become(self.worker.stage, quiet=quiet_since(told, self.worker.quiet, time.monotonic()))
        elif stage is not None:
            self._become(stage)

    async def _settle(self) -> None:
        """Read the report of an ended worker; without one, kill the processes that its launcher left."""
        report = await asyncio.to_thread(self._report)
        if report is not None:
            if not LAUNCHER_SWEEPS:
                await self._sweep()
            self._become(Stage.ENDED, report=report)
            return
        await self._sweep()
        reason, message = await asyncio.to_thread(self._failure)
        self.give_up_reserve()
        self._become(Stage.LOST, lost_because=message, lost_reason=reason)

    def give_up_reserve(self) -> None:
        """Remove the reserve, because no launcher will need it."""
        disk.give_up(self._files.reserve)

    def _report(self) -> Report | None:
        """The report; None: there is none, or none that can be read (`_damage`)."""
        try:
            return reports.read(self._files.report, opener(self._path, reports.MAX_BYTES))
        except (OSError, ValueError) as error:
            self._damage = str(error)
            return None

    async def _sweep(self) -> None:
        """Return when no process of the worker is alive."""
        for pause in _pauses():
            if not await asyncio.to_thread(kill_leftovers, self._path):
                return
            await asyncio.sleep(pause)

    def _failure(self) -> tuple[Reason, str]:
        who = f"the launcher of worker {self.worker.number}"
        if self._spawn_error is not None:
            return Reason(
                reason_of(self._spawn_error, START_FAILED)
            ), f"{who} could not be started: {self._spawn_error}"
        if not self.was_launched() and self._exit_code is None:
            return Reason.LAUNCHER_LOST, f"{who} was not started"
        damage = f"report.json can't be read: {self._damage}" if self._damage else ""
        last = storable(last_line(self._files.output, self._opener)) or damage
        if disk.ended_program(self._files.path, self._exit_code, last):
            return Reason.STORAGE_FULL, f"{who} had no room on the disk of {self._path}" + (f": {last}" if last else "")
        return Reason.LAUNCHER_LOST, f"{who} {_how(self._exit_code)} without a report" + (f": {last}" if last else "")

    def _become(self, stage: Stage, **known: object) -> None:
        how = {name: getattr(self.worker, name) for name in ("warm", "fresh_because", "threads")}
        worker = WorkerStatus(self.worker.number, stage, self.worker.host, **how | known)
        if worker != self.worker:
            self.worker = worker
            self._changed()


def _environment(account: Account | None) -> dict[str, str]:
    passed_on = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    if account is None:
        return passed_on
    passed_on.pop("TMPDIR", None)
    return passed_on | account.environment


def _how(exit_code: int | None) -> str:
    if exit_code is None or exit_code == ALREADY_RUNS:
        return "died"
    return f"was killed by signal {-exit_code}" if exit_code < 0 else f"ended with exit code {exit_code}"


def _pauses() -> Iterator[float]:
    """Seconds between two checks of a starting launcher: 1 ms for the first 100 ms, then more, up to 0.2 s.

    No event on all systems announces a new socket; a launcher needs about 20 ms to open its.
    """
    waited = 0.0
    while True:
        pause = min(max(0.001, waited / 20), 0.2)
        waited += pause
        yield pause
