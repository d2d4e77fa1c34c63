"""One worker launcher: spawned or found again, spoken to over its control socket, followed to its end.

`gang` holds one per worker. What the launcher does is in `client_lib.worker`; that it lives is told by its connection
and its lock, never by a pid alone.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from client_lib.spec.states import Reason
from client_lib.worker import control
from client_lib.worker.directory import ALREADY_RUNS, Directory, is_held, launcher_command, read_json
from client_lib.worker.system import start_time
from server_stub.runtimes.local.processes import LAUNCHER_SWEEPS, kill_leftovers
from server_stub.runtimes.local.warm_pool import WarmPool
from server_stub.runtimes.verdict import Stage, Worker

OUTPUT = "launcher.out"  # what a launcher says when it can't even begin
_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "CLIENT_LIB_PORTABLE")
_EVENTS = {control.READY: Stage.READY, control.STARTED: Stage.STARTED}


class Launcher:
    """The runtime's side of one worker. `changed` is called when `worker` is another one than before."""

    def __init__(self, directory: Path, number: int, host: str, changed: Callable[[], None]) -> None:
        self.worker = Worker(number, Stage.STARTING, host)
        self._path = directory
        self._files = Directory(str(directory))
        self._changed = changed
        self._orders: list[bytes] = []
        self._writer: asyncio.StreamWriter | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._exit_code: int | None = None
        self._spawn_error: str | None = None

    def was_launched(self) -> bool:
        """A launcher has held the lock of this directory: it must never get another one."""
        return read_json(self._files.lock) is not None

    def has_begun(self) -> bool:
        """Its ranks were started."""
        return os.path.exists(self._files.processes)

    async def fork(self, pool: WarmPool) -> str | None:
        """Have the launcher forked from a warm pool. None: it runs, and is as one found again. Else why it doesn't."""
        return await pool.launch(self._files.path)

    def spawn(self, python: str) -> None:
        """Start the launcher; blocks for a millisecond. Should one run already, the new one leaves at once.

        That it could not be started is what `follow` finds.
        """
        try:
            with open(self._path / OUTPUT, "ab") as output:
                self._child = subprocess.Popen(
                    launcher_command(self._files.path, python),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    cwd=self._files.path,
                    env={name: os.environ[name] for name in _PASSED_ON if name in os.environ},
                    start_new_session=True,  # it outlives the server, and no Ctrl-C of a terminal reaches it
                )
        except OSError as error:
            self._spawn_error = str(error)

    def order(self, line: bytes) -> None:
        """Say it now, or as soon as there is a connection; said again after a reconnect (orders can be repeated)."""
        if line not in self._orders:
            self._orders.append(line)
            if self._writer is not None:
                self._writer.write(line)

    def kill(self) -> None:
        """SIGKILL to a launcher that doesn't answer; its ranks die with it."""
        if self._child is not None:
            self._child.kill()
            return
        holder = read_json(self._files.lock)
        if holder and is_held(self._files.lock) and start_time(holder["pid"]) == holder["start_time"]:
            os.kill(holder["pid"], signal.SIGKILL)

    async def follow(self) -> None:
        """Return when the worker is over."""
        while True:
            connection = await self._connected()
            if connection is None or await self._listen(connection):
                break
        await self._settle()

    async def reap(self) -> None:
        """Return when the launcher's process, which has nothing more to do, is gone."""
        for pause in _pauses():
            if self._child is None or self._child.poll() is not None:
                return
            await asyncio.sleep(pause)

    def lose_with_machine(self) -> None:
        """The machine was rebooted: what didn't end before is lost."""
        report = self._report()
        if report is not None:
            self._become(Stage.ENDED, report=report)
        else:
            why = "the machine was rebooted while the job ran"
            self._become(Stage.LOST, lost_because=why, lost_reason=Reason.NODE_LOST)

    async def _connected(self) -> socket.socket | None:
        """A connection, or None when the launcher is over."""
        for pause in _pauses():
            connection = self._connect()
            if connection is not None or self._is_over():
                return connection
            await asyncio.sleep(pause)
        return None

    def _connect(self) -> socket.socket | None:
        if not os.path.exists(self._files.control):  # much cheaper than to try
            return None
        try:
            return control.connect(self._files.control)
        except OSError:  # it doesn't listen yet, or no more: the lock tells
            return None

    def _is_over(self) -> bool:
        return os.path.exists(self._files.report) or self._is_dead()

    def _is_dead(self) -> bool:
        if self._child is not None:
            self._exit_code = self._child.poll()
            if self._exit_code is None:
                return False  # it starts; its lock must be left alone
            self._child = None
        return not is_held(self._files.lock)

    async def _listen(self, connection: socket.socket) -> bool:
        """Until end of file, or until it says that the worker has ended: True."""
        reader, self._writer = await asyncio.open_unix_connection(sock=connection)
        lines = control.Lines()
        try:
            self._writer.writelines(self._orders)
            while data := await reader.read(4096):
                for message in lines.feed(data):
                    if message.get("event") == control.ENDED:
                        self._writer.write(control.leave())
                        return True
                    self._heard(message)
        except ConnectionError:  # as good as end of file: the lock tells what it means
            pass
        finally:
            self._writer.close()
            self._writer = None
        return False

    def _heard(self, message: control.Message) -> None:
        stage = _EVENTS.get(str(message.get("event")))
        if stage is Stage.STARTED:
            self._become(stage, warm=bool(message.get("warm")), fresh_because=message.get("fresh_because"))
        elif stage is not None:
            self._become(stage)

    async def _settle(self) -> None:
        """The worker is over: take its report, or, without one, end what its launcher left running."""
        report = self._report()
        if report is not None:
            if not LAUNCHER_SWEEPS:
                await self._sweep()
            self._become(Stage.ENDED, report=report)
            return
        await self._sweep()
        reason = Reason.LAUNCHER_LOST if self._spawn_error is None else Reason.START_FAILED
        self._become(Stage.LOST, lost_because=await asyncio.to_thread(self._last_words), lost_reason=reason)

    def _report(self) -> dict[str, Any] | None:
        return read_json(self._files.report)

    async def _sweep(self) -> None:
        """Return when no process of the worker lives."""
        for pause in _pauses():
            if not await asyncio.to_thread(kill_leftovers, self._path):
                return
            await asyncio.sleep(pause)

    def _last_words(self) -> str:
        who = f"the launcher of worker {self.worker.number}"
        if self._spawn_error is not None:
            return f"{who} could not be started: {self._spawn_error}"
        if not self.was_launched() and self._exit_code is None:
            return f"{who} was not started"
        try:
            said = (self._path / OUTPUT).read_text("utf-8", "replace").strip().splitlines()
        except FileNotFoundError:
            said = []
        return f"{who} {_how(self._exit_code)} without a report" + (f": {said[-1]}" if said else "")

    def _become(self, stage: Stage, **known: object) -> None:
        how = {"warm": self.worker.warm, "fresh_because": self.worker.fresh_because}
        worker = Worker(self.worker.number, stage, self.worker.host, **how | known)  # type: ignore[arg-type]
        if worker != self.worker:
            self.worker = worker
            self._changed()


def _how(exit_code: int | None) -> str:
    if exit_code is None or exit_code == ALREADY_RUNS:
        return "died"
    return f"was killed by signal {-exit_code}" if exit_code < 0 else f"ended with exit code {exit_code}"


def _pauses() -> Iterator[float]:
    """Seconds between two looks at a launcher that starts: 1 ms for the first 100 ms, then ever more, up to 0.2 s.

    Nothing tells that a socket appears on every system; a launcher needs about 20 ms.
    """
    waited = 0.0
    while True:
        pause = min(max(0.001, waited / 20), 0.2)
        waited += pause
        yield pause
