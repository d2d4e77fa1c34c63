"""A local runtime on a temporary directory, with real launchers and real processes,
and everything that it told.
"""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from client_lib.launcher_protocol.record import METRICS
from client_lib.spec.job import JobSpec
from client_lib.spec.request import Code, CodeInPlace, Submitter
from server_stub.files.job_dirs import log_dir, worker_dir
from server_stub.runtimes import Attempt, Observation
from server_stub.runtimes.local import LocalOptions
from server_stub.runtimes.local.runtime import LocalRuntime
from server_stub.settings import Settings

PATIENCE_S = 30.0


class Site:
    """One runtime and the attempts given to it."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder
        fields = {name: options.pop(name) for name in Settings.model_fields.keys() & options.keys()}
        usual: dict[str, Any] = {
            "state_dir": folder,
            "data_dir": folder,
            "max_cpu_jobs": 8,
            "warm": False,
        }
        settings = Settings(**usual | fields)
        self.runtime = LocalRuntime(
            LocalOptions(settings, **{"nvidia_smi": "no-such-nvidia-smi"} | options)
        )
        self.seen: list[Observation] = []
        self._something = asyncio.Event()

    def _sink(self, seen: Observation) -> None:
        self.seen.append(seen)
        self._something.set()

    async def start(self) -> None:
        await self.runtime.start(self._sink)

    def attempt(self, name: str, script: str, number: int = 1, **fields: Any) -> Attempt:
        """An attempt of the job `name`, submitted from this interpreter;
        `_`-fields go beside the spec.
        """
        code: Code = fields.pop("_code", CodeInPlace())
        submitter = fields.pop("_submitter", None) or Submitter(
            python=sys.executable, environment=dict(os.environ), working_dir=str(self.folder)
        )
        secrets = fields.pop("_secrets", {})
        snapshot = fields.pop("_snapshot", None)
        return Attempt(
            job_id=name,
            job_name=name,
            number=number,
            spec=JobSpec(script=script, **{"log_file": None, "grace_s": 2.0} | fields),
            code=code,
            submitter=submitter,
            secret_values=secrets,
            job_dir=self.folder / "jobs" / name,
            snapshot=snapshot,
            created_at=datetime.now(timezone.utc),
        )

    def submit(self, name: str, script: str, **fields: Any) -> Attempt:
        attempt = self.attempt(name, script, **fields)
        attempt.job_dir.mkdir(parents=True, exist_ok=True)
        self.runtime.submit(attempt)
        return attempt

    def of(self, attempt: Attempt) -> list[Observation]:
        return [s for s in self.seen if (s.job_id, s.attempt) == (attempt.job_id, attempt.number)]

    async def until(self, true: Callable[[], Any]) -> None:
        """Wait for an observation after which `true()` holds."""
        end = time.monotonic() + PATIENCE_S
        while not true():
            self._something.clear()
            try:
                await asyncio.wait_for(self._something.wait(), end - time.monotonic())
            except asyncio.TimeoutError:
                pytest.fail(f"waited {PATIENCE_S} s; saw {self.seen}")

    async def phase(self, attempt: Attempt, phase: str) -> Observation:
        await self.until(lambda: any(s.phase == phase for s in self.of(attempt)))
        return next(s for s in self.of(attempt) if s.phase == phase)

    async def ended(self, attempt: Attempt) -> Observation:
        return await self.phase(attempt, "ended")

    def lines(self, attempt: Attempt, worker: int = 0) -> list[str]:
        """The text of all lines of a worker, without its metrics."""
        folder = log_dir(attempt.job_dir, attempt.number, worker)
        raw = b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))
        records = [line.decode().split(" ", 4) for line in raw.splitlines()]
        return [text for _, _, _, stream, text in records if stream != METRICS]

    def directory(self, attempt: Attempt, worker: int = 0) -> Path:
        return worker_dir(attempt.job_dir, attempt.number, worker)


@asynccontextmanager
async def running(folder: Path, **options: Any) -> AsyncIterator[Site]:
    """A started runtime; closed at the end, as a server is, while its workers go on."""
    site = Site(folder, **options)
    await site.start()
    try:
        yield site
    finally:
        await site.runtime.close()
