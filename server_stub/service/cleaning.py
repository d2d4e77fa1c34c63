"""Removes what is deleted or too old: rows first, then files. What a crash leaves between is in `removals` and goes at
the next look."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from client_lib.errors import ClientLibError
from server_stub.retention import Retention, jobs_to_remove, snapshots_to_remove
from server_stub.service.active import Active
from server_stub.service.clock import Clock
from server_stub.service.evidence import size_of
from server_stub.snapshots import Snapshots
from server_stub.store import Store, rows
from server_stub.submissions import Submissions

log = logging.getLogger(__name__)


@dataclass
class Cleaning:
    """One per service."""

    store: Store
    submissions: Submissions
    snapshots: Snapshots
    jobs_dir: Path
    retention: Retention
    clock: Clock

    async def remove(self, seqs: Sequence[int]) -> None:
        """Delete final jobs with everything that is theirs."""
        if not seqs:
            return
        await self.store.write(lambda connection: _remove_rows(connection, seqs))
        await self.finish_removals()

    async def finish_removals(self) -> None:
        """Remove the files of deleted jobs; those that can't be removed now are tried again later."""
        pending = await self.store.read(rows.pending_removals)
        done = await asyncio.to_thread(self._remove_files, pending)
        if done:
            await self.store.write(lambda connection: rows.forget_removals(connection, done))

    async def on_end(self, active: Active) -> None:
        """A job became final."""
        if active.remove_at_end:
            await self.remove([active.row.seq])
            return
        size = await asyncio.to_thread(size_of, self.jobs_dir / active.row.id)
        await self.store.write(lambda connection: rows.set_size(connection, active.row.seq, size))

    async def start(self) -> None:
        """Finish what a crash cut."""
        await self.remove(await self.store.read(rows.doomed))
        await self.finish_removals()

    async def run(self, every_s: float) -> None:
        """Look for what is too old or too much, for ever."""
        while True:
            try:
                await self.sweep()
            except (ClientLibError, SQLAlchemyError, OSError) as error:  # the disk or the database: next time
                log.warning("retention could not run: %s", error)
            await asyncio.sleep(every_s)

    async def sweep(self) -> None:
        """Remove what is over the bounds of retention."""
        now = self.clock.now()
        finished = await self.store.read(rows.finished)
        in_use = await self.store.read(rows.snapshots_in_use)
        stored = await asyncio.to_thread(lambda: list(self.snapshots.stored()))
        idle_bytes = sum(snapshot.size for snapshot in stored if snapshot.sha256 not in in_use)
        await self.remove(jobs_to_remove(finished, self.retention, now, idle_bytes))
        await self._remove_snapshots()
        if limit := self.retention.too_old(now):
            await self.store.write(lambda connection: rows.drop_keys(connection, limit))
        await self.store.write(self._drop_segments)

    async def _remove_snapshots(self) -> None:
        in_use = await self.store.read(rows.snapshots_in_use)
        stored = await asyncio.to_thread(lambda: list(self.snapshots.stored()))
        for snapshot in snapshots_to_remove(stored, in_use, self.retention, self.clock.now()):
            await asyncio.to_thread(self.snapshots.remove, snapshot.sha256)

    def _drop_segments(self, connection: Connection) -> None:
        # in the writer's thread: between its look and the removal no submit can take a place in a segment
        self.submissions.drop_unused(rows.segments_in_use(connection))

    def _remove_files(self, pending: Sequence[rows.Removal]) -> list[str]:
        done = []
        for removal in pending:
            try:
                if (self.jobs_dir / removal.job_id).exists():
                    shutil.rmtree(self.jobs_dir / removal.job_id)
                self.submissions.erase(removal.place)
                done.append(removal.job_id)
            except OSError as error:
                log.warning("the files of the deleted job %s can't be removed yet: %s", removal.job_id, error)
        return done


def _remove_rows(connection: Connection, seqs: Sequence[int]) -> None:
    for seq in seqs:
        rows.remove(connection, seq)
