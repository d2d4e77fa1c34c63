"""Removes deleted and expired jobs, and snapshots that no job uses. `retention` decides what
expires.

Of a job first what is in its folder is removed, because on a full disk the database needs the room,
then its row, then the rest. The folder is called `<id>.removed` before anything in it is removed,
and until its row is gone: the next start finds it after a crash. The table `removals` lists the
files whose rows are gone.
"""

import asyncio
import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import TypeVar

from client_lib.durable import sync
from server_stub.files.request_log import Place
from server_stub.files.snapshots import StoredSnapshot
from server_stub.runtimes.tasks import Clock
from server_stub.service.active import ActiveJob
from server_stub.service.job_files import REMOVED, JobFiles
from server_stub.service.retention import UPLOAD_GRACE, Retention, size_of, to_remove
from server_stub.store import Store, rows

log = logging.getLogger(__name__)
T = TypeVar("T")
_BATCH = 20
"""Jobs that are deleted in one transaction."""
_EVENTS_BATCH = 500
"""Events that are deleted in one transaction."""
SWEEP_EVERY_S = 600.0
"""Bounds are days and gigabytes: nothing is gained by a shorter interval."""
AGAIN_S = 10.0
"""Pause before the next sweep if a removal or a sweep was interrupted: a database that restarts is
back by then, and one that is away is not asked all the time."""


@dataclass
class Cleanup:
    """The cleanup of one service."""

    store: Store
    files: JobFiles
    retention: Retention
    clock: Clock
    _removing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _interrupted: asyncio.Event = field(default_factory=asyncio.Event)

    async def remove(self, seqs: Sequence[int]) -> None:
        """Delete final jobs with their logs, events and files. A removal that fails in the middle
        is finished by a sweep, soon."""
        try:
            await self._remove(seqs)
        except BaseException:
            self._interrupted.set()
            raise

    async def _remove(self, seqs: Sequence[int]) -> None:
        for start in range(0, len(seqs), _BATCH):  # a submit waits for one batch, not for all
            batch = seqs[start : start + _BATCH]
            await asyncio.to_thread(self._empty, await self.store.read_all(rows.final_ids, batch))
            while await self.store.write(rows.remove_events, batch, _EVENTS_BATCH):
                pass
            await self.store.write(rows.remove, batch)
            await self._finish_removals()

    async def _finish_removals(self) -> None:
        """Remove the files of deleted jobs. If a file can't be removed now, try again later."""
        async with self._removing:
            pending = await self.store.read_all(rows.pending_removals)
            if done := await asyncio.to_thread(self._remove_files, pending):
                await self.store.write(rows.forget_removals, done)

    async def on_end(self, active: ActiveJob) -> None:
        """Handle the end of a job: remove it if that was requested, else note its size."""
        if active.remove_at_end:
            await self.remove([active.row.seq])
        else:
            await self._note_size(active.row.seq, active.row.id)

    async def _note_size(self, seq: int, job_id: str) -> None:
        folder = self.files.jobs_dir / job_id
        size = await asyncio.to_thread(_size_of, folder)
        # deleted meanwhile, and its folder too
        if not await self.store.write(rows.set_size, seq, size):
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async def finish(self) -> None:
        """Finish the removals that a crash or a lost database interrupted."""
        begun = await asyncio.to_thread(
            lambda: [path.stem for path in self.files.jobs_dir.glob(f"*{REMOVED}")]
        )
        await self.remove(await self.store.read_all(rows.doomed, begun))
        await self._finish_removals()

    async def run(self) -> None:
        """Sweep every few minutes, and soon after an interruption, until the task is cancelled."""
        while True:
            self._interrupted.clear()
            try:
                await self.sweep()
            except Exception as error:  # noqa: BLE001  # the disk or the database fails: try again later
                log.warning("retention could not run: %s", error)
                self._interrupted.set()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._interrupted.wait(), SWEEP_EVERY_S)
                await asyncio.sleep(AGAIN_S)

    async def sweep(self) -> None:
        """Remove jobs and snapshots over the bounds of retention."""
        await self.finish()
        for seq, job_id in await self.store.read_all(rows.unmeasured):
            await self._note_size(seq, job_id)
        now = self.clock.now()
        finished = await self.store.read_all(rows.finished)
        kept_bytes = size_of(finished) + size_of(await self._idle_snapshots())
        limits = self.retention.limits(now, kept_bytes, self.files.room.free)

        expired = to_remove(finished, limits.oldest, kept_bytes - limits.most_bytes)
        await self.remove([job.seq for job in expired])

        idle = await self._idle_snapshots()
        excess = size_of(idle) - limits.most_bytes
        for snapshot in to_remove(idle, limits.oldest, excess, fresh_from=now - UPLOAD_GRACE):
            await asyncio.to_thread(self.files.snapshots.remove, snapshot.digest, snapshot.at)

        if limits.oldest:
            await self.store.write(rows.drop_keys, limits.oldest)
        await self.store.drop_unused_segments()
        await asyncio.to_thread(self.files.room.restore_spare)

    async def _idle_snapshots(self) -> list[StoredSnapshot]:
        """The snapshots that no job uses, the oldest first."""
        in_use = await self.store.read_all(rows.snapshots_in_use)
        stored = await asyncio.to_thread(
            lambda: sorted(self.files.snapshots.stored(), key=attrgetter("at"))
        )
        return [each for each in stored if each.digest not in in_use]

    def _empty(self, job_ids: Sequence[str]) -> None:
        """Remove the folders within the folders of the jobs. What can't be
        removed now is left for later.
        """
        marked = [self.files.jobs_dir / f"{job_id}{REMOVED}" for job_id in job_ids]
        for folder in marked:
            with suppress(OSError):  # the job never ran, or its removal had begun before
                folder.with_suffix("").rename(folder)
        sync(self.files.jobs_dir)
        for path in (path for folder in marked if folder.exists() for path in folder.iterdir()):
            shutil.rmtree(path, ignore_errors=True)

    def _remove_files(self, pending: Mapping[str, Place]) -> list[str]:
        done = []
        for job_id, place in pending.items():
            try:
                # first: a rebuilt database must not have the job again
                self.files.request_log.erase(place)
                for name in (job_id, f"{job_id}{REMOVED}"):
                    if (self.files.jobs_dir / name).exists():
                        shutil.rmtree(self.files.jobs_dir / name)
                done.append(job_id)
            except OSError as error:
                log.warning(
                    "the files of the deleted job %s can't be removed yet: %s", job_id, error
                )
        return done


def _size_of(folder: Path) -> int:
    """Bytes on disk of all files in a folder. A file with several names counts
    once, a vanished one never.
    """
    total = 0
    seen: set[int] = set()
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                status = os.lstat(os.path.join(parent, name))
            except OSError:
                continue
            if status.st_nlink == 1 or status.st_ino not in seen:
                total += status.st_blocks * 512
                seen.add(status.st_ino)
    return total
