"""The warm pools of this machine: one per interpreter, started with the modules that scripts have
imported.

The first job that could use a pool starts fresh. The pool is started when that job ends, with the
modules that it has imported, so that it costs the job nothing; a pool for a job that still runs
after `GUESS_AFTER_S` starts with a guess. Modules that later scripts import are added to the list,
which outlives the server. Used on one event loop.

A pool's process (`client_lib.worker.warm`) is reachable only over its end of a pair of sockets, so
that no other user of this machine can make it fork. It ends with this server; the launchers forked
from it continue.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from client_lib.durable import make_private_folders, read_json, write_json
from client_lib.launcher_protocol.directory import MARKER, Directory
from client_lib.launcher_protocol.plan import OPEN_FILES, WorkerPlan
from client_lib.launcher_protocol.processes import number
from client_lib.launcher_protocol.rank_processes import processes
from client_lib.spec.wire import WarmPoolInfo
from client_lib.worker import warm
from client_lib.worker.warm import fit
from server_stub.runtimes.local.launcher import LAUNCHER_SWEEPS
from server_stub.runtimes.tasks import Tasks, is_set_within

GUESS = ("numpy", "torch", "torch.distributed")
GUESS_AFTER_S = 10.0
# successive jobs that a pool did not suit; then the pool is replaced by one for such jobs
MISFITS_MAX = 2
# new modules that justify a new pool; one module of a new package does so, too
WORTH_A_RESTART = 20
MODULES_MAX = 6000
_IDLE_S = 1800.0  # a pool ends after so many seconds without a request
_LEFT_OUT = frozenset({"client_lib", "server_stub", "_distutils_hack", "pip", "_pytest", "pytest"})

_log = logging.getLogger(__name__)


@dataclass
class _Interpreter:
    python: str
    config: Path
    """The file with its list of modules, and the modules that its pools have refused."""
    pool: WarmPool | None = None
    next: WarmPool | None = None
    """Replaces `pool` when it is ready."""
    misfits: int = 0
    guess: asyncio.TimerHandle | None = None

    @property
    def living(self) -> list[WarmPool]:
        return [
            pool for pool in (self.pool, self.next) if pool is not None and pool.state != "ended"
        ]

    def read(self) -> dict[str, Any]:
        return {"modules": [], "refused": {}} | (read_json(str(self.config)) or {})

    def write(self, modules: list[str]) -> None:
        make_private_folders(str(self.config.parent))
        config = {"python": self.python, "modules": modules, "refused": self.read()["refused"]}
        write_json(str(self.config), config | {"idle_s": _IDLE_S})


class WarmPools:
    """`folder`: holds the lists of modules."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._interpreters: dict[str, _Interpreter] = {}
        self._tasks = Tasks(_log, "a task of the warm pools failed")

    def pool_for(self, plan: WorkerPlan) -> WarmPool | None:
        """The pool for the plan's interpreter, if the plan may use one and it is ready."""
        known = self._interpreters.get(plan.python or "") if plan.record_imports else None
        return known.pool if known and known.pool and known.pool.state == "ready" else None

    @property
    def any_ready(self) -> bool:
        """A pool is ready, for any interpreter."""
        return any(
            known.pool and known.pool.state == "ready" for known in self._interpreters.values()
        )

    def job_began(self, plan: WorkerPlan, worker_dir: str) -> None:
        """A job that could use a pool was started."""
        known = self._interpreter(plan)
        if known and not known.guess and not known.living:
            known.guess = asyncio.get_running_loop().call_later(
                GUESS_AFTER_S, self._guess, known, plan, worker_dir
            )

    def job_ended(self, plan: WorkerPlan, worker_dir: str, *, fitted: bool) -> None:
        """`fitted`: there was no pool, or it suited the job."""
        if known := self._interpreter(plan):
            if known.guess:
                known.guess.cancel()
                known.guess = None
            self._tasks.begin(self._learn(known, plan, worker_dir, fitted))

    def shown(self) -> list[WarmPoolInfo]:
        return [pool.info() for known in self._interpreters.values() for pool in known.living]

    def close(self) -> None:
        """End all pools; jobs forked from them continue."""
        self._tasks.cancel()
        for known in self._interpreters.values():
            if known.guess:
                known.guess.cancel()
            for pool in known.living:
                pool.close()

    def _interpreter(self, plan: WorkerPlan) -> _Interpreter | None:
        """None: the plan may use no pool, or none could start its ranks."""
        python = plan.python
        if (
            not plan.record_imports
            or python is None
            or not LAUNCHER_SWEEPS
            or not plan.uses_rank_runner
        ):
            return None
        name = f"{hashlib.sha256(python.encode()).hexdigest()[:16]}.json"
        return self._interpreters.setdefault(python, _Interpreter(python, self._folder / name))

    def _guess(self, known: _Interpreter, plan: WorkerPlan, worker_dir: str) -> None:
        known.guess = None
        if not known.living:
            self._tasks.begin(
                self._begin(known, plan, worker_dir, known.read()["modules"] or list(GUESS))
            )

    async def _learn(
        self, known: _Interpreter, plan: WorkerPlan, worker_dir: str, fitted: bool
    ) -> None:
        before = known.read()["modules"]
        modules, worth = extended(before, await asyncio.to_thread(_imported, worker_dir))
        known.misfits = 0 if fitted else known.misfits + 1
        if not modules or known.next:
            return
        if worth or not known.living or known.misfits >= MISFITS_MAX:
            known.misfits = 0
            await self._begin(known, plan, worker_dir, modules)
        elif modules != before:
            await asyncio.to_thread(known.write, modules)

    async def _begin(
        self, known: _Interpreter, plan: WorkerPlan, worker_dir: str, modules: list[str]
    ) -> None:
        """Start a new pool; the old one serves until it is ready."""
        process = processes(plan, Directory(worker_dir), None)[0]
        pool = known.next = WarmPool(
            known.python, known.config, fit.environment_of(process.environment)
        )
        try:
            await asyncio.to_thread(known.write, modules)
            await pool.start()
        except OSError as error:  # no room for the list
            _log.warning("no warm pool for %s: %s", known.python, error)
        finally:
            known.next = None
        if pool.state != "ready":
            output = pool.output.decode("utf-8", "replace")
            _log.warning("no warm pool for %s: %s %s", known.python, pool.why_ended, output)
            return
        if known.pool is not None:
            known.pool.close()
        known.pool = pool


def _imported(worker_dir: str) -> list[str]:
    """Modules that local rank 0 has imported; empty if it was killed."""
    try:
        names = json.loads(Path(Directory(worker_dir).imports).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return [name for name in names if isinstance(name, str)]


def extended(known: Sequence[str], imported: Sequence[str]) -> tuple[list[str], bool]:
    """(`known` with the new modules of `imported`, True if they justify a new pool)."""
    before = set(known)
    added = [
        name for name in imported if name not in before and name.partition(".")[0] not in _LEFT_OUT
    ]
    packages = {name.partition(".")[0] for name in known}
    worth = len(added) >= WORTH_A_RESTART or any(
        name.partition(".")[0] not in packages for name in added
    )
    return [*known, *added][:MODULES_MAX], worth


# --- one pool


_PROCESS = str(Path(warm.__file__).with_name("__main__.py"))
_START_S = 600.0  # an import that never ends would keep every other pool out
_LAUNCH_S = 5.0  # a fork takes 10 ms; a pool that hangs is ended
_OUTPUT_MAX = 4096
_PACKET = 65536


class WarmPool:
    """Used on one event loop."""

    def __init__(self, python: str, config: Path, environment: dict[str, str]) -> None:
        self.python = python
        self.state: Literal["starting", "ready", "ended"] = "starting"
        self.why_ended = "it died"
        self.output = b""
        """The last output of its imports."""
        self._config = config
        self._environment = environment
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._waiting: dict[str, asyncio.Future[str | None]] = {}
        self._modules = self._jobs = 0
        self._used_at = time.monotonic()
        self._settled = asyncio.Event()

    async def start(self) -> None:
        """Return when it is ready or has ended."""
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
        loop.add_reader(
            self._process.stdout.fileno(), self._read_output, self._process.stdout.fileno()
        )
        loop.add_reader(self._socket.fileno(), self._read, self._socket)
        if not await is_set_within(self._settled, _START_S):
            self._end(f"it was not ready within {_START_S:g} s")

    def _spawn(self, fd: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [self.python, _PROCESS, str(fd), str(self._config), warm.ROOM],
            env=self._environment | {MARKER: warm.ROOM, OPEN_FILES: os.environ.get(OPEN_FILES, "")},
            stdin=subprocess.DEVNULL,
            # A pipe, as ranks have one: ranks inherit Python's choice of buffering.
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[fd],
            cwd=self._config.parent,
            start_new_session=True,
        )

    async def launch(self, worker_dir: str) -> str | None:
        """Fork a launcher. Returns None if it runs and holds its lock, otherwise
        the reason of the failure.
        """
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
        pid = self._process.pid if self._process else None
        # The pool's own memory, and its share of the memory that it has in common with its
        # launchers and ranks.
        kib = number(f"/proc/{pid}/smaps_rollup", b"Pss:")
        return WarmPoolInfo(
            python=self.python,
            state="ready" if self.state == "ready" else "starting",
            pid=pid,
            modules=self._modules,
            launches=self._jobs,
            idle_s=round(time.monotonic() - self._used_at, 1),
            memory_mib=round(kib / 1024, 1) if kib else None,
        )

    def close(self) -> None:
        self._end("it was replaced")

    def _read(self, from_pool: socket.socket) -> None:
        try:
            packet = from_pool.recv(_PACKET)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        message = json.loads(packet or "{}")
        event = message.get("event")
        if event is None:
            self._end(self.why_ended)
        elif event == "ready":
            self.state = "ready"
            self._modules = message["modules"]
            self._settled.set()
        elif event == "ending":
            self._end(message["why"])
        elif (answer := self._waiting.get(message["worker_dir"])) and not answer.done():
            self._jobs += event == "launched"
            self._used_at = time.monotonic()
            answer.set_result(None if event == "launched" else "its launcher ended at once")

    def _read_output(self, descriptor: int) -> None:
        text = os.read(descriptor, _PACKET)
        self.output = (self.output + text)[-_OUTPUT_MAX:]
        if not text:
            asyncio.get_running_loop().remove_reader(descriptor)

    def _end(self, why: str) -> None:
        if self.state == "ended":
            return
        self.state = "ended"
        self.why_ended = why
        self._settled.set()
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
            self._process.kill()  # the pool has no state to save
            loop.run_in_executor(None, self._process.wait)
