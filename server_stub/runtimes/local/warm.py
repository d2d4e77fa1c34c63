"""The warm pools of this machine: one per interpreter, begun when a job has shown what scripts import.

The first job that could use a pool starts fresh, and the pool is begun when that job ends, with just what it has
imported: it costs that job nothing. A job that is still running after `GUESS_AFTER_S` has it begun with a guess. What
later scripts import beyond that is added to the list, which outlives the server. Used on one event loop.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from pathlib import Path
from typing import Any

from client_lib.spec.wire import WarmPoolInfo
from client_lib.worker.directory import Directory, read_json, write_json
from client_lib.worker.environment import processes, uses_rank_runner
from client_lib.worker.plan import WorkerPlan
from client_lib.worker.warm import fit
from server_stub.runtimes.local.processes import LAUNCHER_SWEEPS
from server_stub.runtimes.local.warm_pool import WarmPool
from server_stub.runtimes.local.warm_rules import grown
from server_stub.tasks import Tasks

GUESS = ("numpy", "torch", "torch.distributed")
GUESS_AFTER_S = 10.0
MISFITS_MAX = 2  # jobs in a row that a pool did not suit: the next pool is made for such jobs

_log = logging.getLogger(__name__)


class WarmPools:
    """`folder`: where the lists of modules are kept. `idle_s`: a pool ends when nobody asked for so long."""

    def __init__(self, folder: Path, idle_s: float) -> None:
        self._folder, self._idle_s = folder, idle_s
        self._pools: dict[str, WarmPool] = {}
        self._next: dict[str, WarmPool] = {}
        """Those that will take the place of another when they are ready."""
        self._misfits: dict[str, int] = {}
        self._guesses: dict[str, asyncio.TimerHandle] = {}
        self._tasks = Tasks(_log, "a task of the warm pools failed")

    def pool_for(self, plan: WorkerPlan) -> WarmPool | None:
        """One that is ready."""
        pool = self._pools.get(plan.python or "")
        return pool if pool is not None and pool.state == "ready" else None

    @property
    def stands(self) -> bool:
        """There is one that is ready, for whichever interpreter."""
        return any(pool.state == "ready" for pool in self._pools.values())

    def job_began(self, plan: WorkerPlan, worker_dir: str) -> None:
        """A job that could use a pool was started."""
        python = plan.python
        if python is None or not LAUNCHER_SWEEPS or not uses_rank_runner(plan) or python in self._guesses:
            return
        if not self._lives(python):
            guess = asyncio.get_running_loop().call_later(GUESS_AFTER_S, self._guess, plan, worker_dir)
            self._guesses[python] = guess

    def job_ended(self, plan: WorkerPlan, worker_dir: str, *, fitted: bool) -> None:
        """`fitted`: there was no pool, or it suited the job."""
        python = plan.python
        if python is None or not LAUNCHER_SWEEPS or not uses_rank_runner(plan):
            return
        if (guess := self._guesses.pop(python, None)) is not None:
            guess.cancel()
        self._tasks.begin(self._learn(python, plan, worker_dir, fitted))

    def shown(self) -> list[WarmPoolInfo]:
        """What there is."""
        living = [*self._pools.values(), *self._next.values()]
        return [pool.info() for pool in living if pool.state != "ended"]

    def close(self) -> None:
        """End all; the jobs that came out of them go on."""
        for guess in self._guesses.values():
            guess.cancel()
        self._tasks.cancel()
        for pool in [*self._pools.values(), *self._next.values()]:
            pool.close()

    # --- when one is begun

    def _lives(self, python: str) -> bool:
        pools = (self._pools.get(python), self._next.get(python))
        return any(pool is not None and pool.state != "ended" for pool in pools)

    def _guess(self, plan: WorkerPlan, worker_dir: str) -> None:
        assert plan.python
        self._guesses.pop(plan.python, None)
        if not self._lives(plan.python):
            known = self._read(plan.python)["modules"] or list(GUESS)
            self._tasks.begin(self._begin(plan.python, plan, worker_dir, known))

    async def _learn(self, python: str, plan: WorkerPlan, worker_dir: str, fitted: bool) -> None:
        known = self._read(python)["modules"]
        modules, worth = grown(known, await asyncio.to_thread(_imported, worker_dir))
        self._misfits[python] = 0 if fitted else self._misfits.get(python, 0) + 1
        if not modules or python in self._next:
            return
        if worth or not self._lives(python) or self._misfits[python] >= MISFITS_MAX:
            self._misfits[python] = 0
            await self._begin(python, plan, worker_dir, modules)
        elif modules != known:
            await asyncio.to_thread(self._write, python, modules)

    async def _begin(self, python: str, plan: WorkerPlan, worker_dir: str, modules: list[str]) -> None:
        """The old one serves until the new one is ready."""
        process = processes(plan, Directory(worker_dir), None)[0]
        pool = WarmPool(python, self._path(python), fit.environment_of(process.environment))
        self._next[python] = pool
        try:
            await asyncio.to_thread(self._write, python, modules)
            await pool.start()
        except OSError as error:  # no room for the list
            _log.warning("no warm pool for %s: %s", python, error)
        finally:
            del self._next[python]
        if pool.state != "ready":
            _log.warning("no warm pool for %s: %s %s", python, pool.why_ended, pool.said.decode("utf-8", "replace"))
            return
        old = self._pools.get(python)
        self._pools[python] = pool
        if old is not None:
            old.close()

    # --- the list of modules

    def _path(self, python: str) -> Path:
        return self._folder / f"{hashlib.sha256(python.encode()).hexdigest()[:16]}.json"

    def _read(self, python: str) -> dict[str, Any]:
        found = read_json(str(self._path(python))) or {}
        return {"modules": [], "refused": {}} | found

    def _write(self, python: str, modules: list[str]) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        config = {"python": python, "modules": modules, "refused": self._read(python)["refused"]}
        write_json(str(self._path(python)), config | {"idle_s": self._idle_s})


def _imported(worker_dir: str) -> list[str]:
    """What local rank 0 has left; nothing where it was killed."""
    try:
        names = json.loads(Path(Directory(worker_dir).imports).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return [name for name in names if isinstance(name, str)]
