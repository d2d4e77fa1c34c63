"""One worker elsewhere: which pod owns it, how far it is, what it has sent. All of it is on disk before it is answered.

`attempt` holds one per worker. What it may do next is decided there.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, ParamSpec, TypeVar

from client_lib.errors import Conflict, StorageFull, TooLarge
from client_lib.worker.directory import Directory, read_json, write_json
from client_lib.worker.function_runner import RESULTS
from server_stub.workers.log_file import Lengths, LogFile
from server_stub.workers.views import Speaker, State, WorkerView

FACTS = "worker.json"
"""In the worker's directory: what _KEPT names."""
_KEPT = ("pod_uid", "pod", "start", "former", "displaced", "state", "missing")
_BATCH = 2**20
P = ParamSpec("P")
T = TypeVar("T")
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class Worker:
    """Changed on the event loop's thread; the lock keeps what is written to its directory in order."""

    def __init__(self, number: int, folder: Path, log: LogFile) -> None:
        """`open` it before anything else."""
        self.view = WorkerView(number)
        self.heard_at = time.monotonic()
        self.changed = asyncio.Event()
        """Set when it may be to do something else, and then another one: one that is awaited is never missed."""
        self._folder = folder
        self._log = log
        self._lock = asyncio.Lock()

    def open(self) -> None:
        """Go on with what was said before. Small files."""
        facts = read_json(str(self._folder / FACTS)) or {}
        facts["former"] = tuple(Speaker(*each) for each in facts.get("former", ()))
        self._log.open()
        self._see(**facts, report=read_json(self._report_path), **self._log_facts())

    @property
    def _report_path(self) -> str:
        return Directory(str(self._folder)).report

    async def claim(self, speaker: Speaker, pod: str | None, may_return: Callable[[WorkerView], bool] | None) -> bool:
        """The pod is about to speak for this worker. True: it is the first, or one that was lost goes on in it.

        Raises Conflict: another one does.
        """
        async with self._lock:
            view = self.view
            owner = Speaker(view.pod_uid or "", view.start)
            if view.pod_uid == speaker.pod_uid and (may_return is None or speaker.start in ("", view.start)):
                self.heard_at = time.monotonic()
                return False
            if view.pod_uid is None:
                await self._note(pod_uid=speaker.pod_uid, start=speaker.start, pod=pod, state="preparing")
                return True
            if may_return is not None and not view.knows(speaker):
                if may_return(view):
                    await self._return(owner, speaker, pod)
                    return True
                await self._note(displaced=True)
            raise Conflict(
                f"worker {view.worker} of this attempt belongs to pod {view.pod} ({view.pod_uid})",
                hint="a pod that was made anew starts nothing within an attempt",
            )

    async def _return(self, owner: Speaker, speaker: Speaker, pod: str | None) -> None:
        """Its log goes on; how it ended before is forgotten."""
        await on_disk(Path(self._report_path).unlink, missing_ok=True)
        former = (*self.view.former, owner)
        await self._note(pod_uid=speaker.pod_uid, start=speaker.start, pod=pod, state="preparing", former=former)
        self._see(report=None)
        self.heard_at = time.monotonic()

    async def become(self, state: State) -> bool:
        """False: it was there already. A worker never goes back."""
        async with self._lock:
            order = ("preparing", "ready", "started", "ended")
            if self.view.state is not None and order.index(state) <= order.index(self.view.state):
                return False
            await self._note(state=state)
            return True

    def wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    def live(self, signs_of_life: int) -> None:
        if signs_of_life != self.view.signs_of_life:
            self._see(signs_of_life=signs_of_life)

    async def take_log(self, offset: int, data: bytes, *, gap: bool) -> Lengths:
        """Raises InvalidRequest, StorageFull."""
        async with self._lock:
            missing = await on_disk(self._log.put, offset, data, gap=gap)
            await self._after_log(missing)
        return self._log.lengths()

    async def add_records(self, records: bytes) -> int:
        """See WorkerDesk.append."""
        async with self._lock:
            new, missing = await on_disk(self._log.add, records)
            await self._after_log(missing)
        return new

    async def _after_log(self, missing: int) -> None:
        self._see(**self._log_facts())
        if missing:
            await self._note(missing=self.view.missing + missing)

    async def take_report(self, report: dict[str, Any]) -> None:
        """The first one stays. The log that is here is on disk for sure afterwards."""
        async with self._lock:
            await on_disk(self._log_synced)
            if self.view.report is None:
                await on_disk(write_json, self._report_path, report, durable=True)
                self._see(report=report, **self._log_facts())

    def _log_synced(self) -> None:
        if self.view.log_length:
            self._log.sync()

    async def take_result(self, rank: int, chunks: AsyncIterator[bytes], max_bytes: int) -> None:
        """Raises TooLarge, StorageFull: nothing was stored."""
        path = self._folder / RESULTS / str(rank)
        incoming = path.with_name(f"{rank}.{os.urandom(6).hex()}.new")
        try:
            await on_disk(path.parent.mkdir, mode=0o700, exist_ok=True, parents=True)
            with await on_disk(incoming.open, "xb") as file:
                await _receive(file, chunks, max_bytes)
            await on_disk(incoming.replace, path)
        finally:
            incoming.unlink(missing_ok=True)

    def forget(self) -> None:
        """Remove all that was said."""
        for path in (self._folder / FACTS, Path(self._report_path)):
            path.unlink(missing_ok=True)
        for folder in (self._folder / "log", self._folder / RESULTS):
            shutil.rmtree(folder, ignore_errors=True)

    def _log_facts(self) -> dict[str, int]:
        return {"log_length": self._log.length, "next_seq": self._log.next_seq}

    def _see(self, **facts: Any) -> None:
        self.view = replace(self.view, **facts)

    async def _note(self, **facts: Any) -> None:
        """Written down first, then true."""
        after = replace(self.view, **facts)
        kept = {name: getattr(after, name) for name in _KEPT}
        await on_disk(self._write_facts, kept)
        self.view = replace(self.view, **facts)

    def _write_facts(self, facts: dict[str, Any]) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(str(self._folder / FACTS), facts, durable=True)


async def on_disk(call: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Run it in a thread. Raises StorageFull for a disk that takes nothing."""
    try:
        return await asyncio.to_thread(call, *args, **options)
    except OSError as error:
        if error.errno in _FULL:
            raise StorageFull(f"the server's disk is full: {error}") from error
        raise


async def _receive(file: IO[bytes], chunks: AsyncIterator[bytes], max_bytes: int) -> None:
    batch, size = bytearray(), 0
    async for chunk in chunks:
        size += len(chunk)
        if size > max_bytes:
            raise TooLarge(f"a result is larger than the {max_bytes / 1e6:.0f} MB that this server takes")
        batch += chunk
        if len(batch) >= _BATCH:
            await on_disk(file.write, batch)
            batch = bytearray()
    await on_disk(file.write, batch)
    await on_disk(file.flush)
