"""One warm pool process: started, asked for launchers, ended. What it does is in `client_lib.worker.warm`.

Its end of a pair of sockets is the only way to it, so that nobody else on this machine can have it fork. It ends with
this server; the launchers that came out of it go on, as all launchers do.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import time
from pathlib import Path
from typing import Literal

from client_lib.spec.wire import WarmPoolInfo
from client_lib.worker.directory import MARKER
from client_lib.worker.warm import title

_PROCESS = str(Path(title.__file__).with_name("__main__.py"))
_LAUNCH_S = 5.0  # a fork takes 10 ms; a pool that hangs is ended
_SAID_MAX = 4096
_PACKET = 65536


class WarmPool:
    """Used on one event loop."""

    def __init__(self, python: str, config: Path, environment: dict[str, str]) -> None:
        self.python = python
        self.state: Literal["starting", "ready", "ended"] = "starting"
        self.why_ended = "it died"
        self.said = b""
        """The last that its imports printed."""
        self._config, self._environment = config, environment
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._waiting: dict[str, asyncio.Future[str | None]] = {}
        self._modules = self._jobs = 0
        self._used_at = time.monotonic()
        self._changed = asyncio.Event()

    async def start(self) -> None:
        """Return when it is ready, or over."""
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        try:
            self._process = await asyncio.to_thread(self._spawn, theirs.fileno())
        except OSError as error:
            self._end(f"it could not be started: {error.strerror}")
            return
        finally:
            theirs.close()
        assert self._process.stdout
        loop = asyncio.get_running_loop()
        loop.add_reader(self._process.stdout.fileno(), self._read_output)
        loop.add_reader(self._socket.fileno(), self._read)
        while self.state == "starting":
            self._changed.clear()
            await self._changed.wait()

    def _spawn(self, fd: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [self.python, _PROCESS, str(fd), str(self._config), title.ROOM],
            env=self._environment | {MARKER: title.ROOM},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,  # as ranks have: what Python finds there at its start, they inherit
            stderr=subprocess.STDOUT,
            pass_fds=[fd],
            cwd=self._config.parent,
            start_new_session=True,
        )

    async def launch(self, worker_dir: str) -> str | None:
        """None: a launcher runs in that directory, and holds its lock. Else why there is none."""
        if self.state != "ready" or self._socket is None:
            return self.why_ended
        answer: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._waiting[worker_dir] = answer
        try:
            self._socket.send(json.dumps({"do": "launch", "worker_dir": worker_dir}).encode())
            return await asyncio.wait_for(answer, _LAUNCH_S)
        except (OSError, asyncio.TimeoutError):
            self._end(f"it did not answer within {_LAUNCH_S:g} s")
            return self.why_ended
        finally:
            self._waiting.pop(worker_dir, None)

    def info(self) -> WarmPoolInfo:
        """As it is shown."""
        return WarmPoolInfo(
            python=self.python,
            state="ready" if self.state == "ready" else "starting",
            pid=self._process.pid if self._process else None,
            modules=self._modules,
            launches=self._jobs,
            idle_s=round(time.monotonic() - self._used_at, 1),
            memory_mib=_pss_mib(self._process.pid) if self._process else None,
        )

    def close(self) -> None:
        """End it."""
        self._end("it was replaced")

    def _read(self) -> None:
        assert self._socket
        try:
            packet = self._socket.recv(_PACKET)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if not packet:
            self._end(self.why_ended)
            return
        message = json.loads(packet)
        if message["event"] == "ready":
            self.state, self._modules = "ready", message["modules"]
            self._changed.set()
        elif message["event"] == "ending":
            self.why_ended = message["why"]
        else:
            self._answer(message["worker_dir"], launched=message["event"] == "launched")

    def _answer(self, worker_dir: str, *, launched: bool) -> None:
        answer = self._waiting.get(worker_dir)
        if answer is None or answer.done():  # the end of a launcher that has done its work
            return
        self._jobs += launched
        self._used_at = time.monotonic()
        answer.set_result(None if launched else "its launcher ended at once")

    def _read_output(self) -> None:
        assert self._process
        assert self._process.stdout
        text = self._process.stdout.read1(_PACKET)  # type: ignore[attr-defined]  # it is a BufferedReader
        self.said = (self.said + text)[-_SAID_MAX:]
        if not text:
            asyncio.get_running_loop().remove_reader(self._process.stdout.fileno())

    def _end(self, why: str) -> None:
        if self.state == "ended":
            return
        self.state, self.why_ended = "ended", why
        self._changed.set()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_result(why)
        loop = asyncio.get_running_loop()
        if self._socket:
            loop.remove_reader(self._socket.fileno())
            self._socket.close()
        if self._process:
            assert self._process.stdout
            loop.remove_reader(self._process.stdout.fileno())
            self._process.stdout.close()
            self._process.kill()  # it holds nothing that would be lost
            loop.run_in_executor(None, self._process.wait)


def _pss_mib(pid: int) -> float | None:
    """Its share of the memory that it has in common with its launchers and ranks, and its own."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    return next((round(int(line.split()[1]) / 1024, 1) for line in lines if line.startswith("Pss:")), None)
