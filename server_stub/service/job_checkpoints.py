"""The checkpoints of jobs: which there are, which of them go, and the bytes of one.

`job_metrics` reads in the logs which checkpoints the launchers have seen. The files themselves are
seen where the runtime runs jobs on this machine; elsewhere they are on disks of the workers.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from datetime import datetime, timezone

from client_lib.errors import ClientLibError, Conflict, NotFound, NotSupported
from client_lib.spec.checkpoints import (
    CheckpointPrune,
    EarlyCheckpoint,
    JobCheckpoint,
    JobCheckpoints,
    PrunedCheckpoints,
)
from client_lib.spec.replace import replaced
from client_lib.spec.wire import JobInfo
from server_stub.runtimes import CheckpointFiles, Runtime
from server_stub.service.active import ActiveJob, ActiveJobs, StoredJob
from server_stub.service.job_files import JobFiles
from server_stub.service.job_metrics import MetricsReader
from server_stub.service.lookup import JobLookup, check_owner
from server_stub.turns import Turns
from server_stub.users import User

_LOOK_S = 5.0
"""Longest delay of a list by the look at what is still there."""


class CheckpointKeeper:
    """The checkpoints of the jobs of one service. Event loop only. The methods for users take
    `owner` as the methods of `Service` do."""

    def __init__(
        self,
        runtime: Runtime,
        jobs: ActiveJobs,
        files: JobFiles,
        lookup: JobLookup,
        metrics: MetricsReader,
    ) -> None:
        self._runtime = runtime
        self._jobs = jobs
        self._files = files
        self._lookup = lookup
        self._metrics = metrics
        # each is a process; a removal and a download may last for long, a look does not
        self._turns = Turns("requests for checkpoints", at_once=8, of_user=4, waiting_of_user=32)
        self._looks = Turns("looks at checkpoints", at_once=4, of_user=2, waiting_of_user=32)

    async def listed(self, user: User, name: str, owner: str | None) -> JobCheckpoints:
        """The checkpoints that the job has. Raises what `MetricsReader.of` raises."""
        found = await self._lookup.find(user, name, owner)
        answer = await self._metrics.checkpoints(user, found.public)
        left = await self._still_there(user, found, answer.checkpoints)
        return replaced(answer, checkpoints=left)

    async def seen(self, user: User, name: str, owner: str | None) -> list[JobCheckpoint]:
        """The checkpoints of the job, by the part of its logs that can be read at once; none where
        `listed` refuses."""
        found = await self._lookup.find(user, name, owner)
        seen = await self._metrics.seen_checkpoints(user, found.public)
        return await self._still_there(user, found, seen)

    async def prune(
        self, user: User, name: str, request: CheckpointPrune, owner: str | None
    ) -> PrunedCheckpoints:
        """Remove checkpoints of early steps, or tell which would go.

        Raises:
            NotFound: there is no such job; Forbidden: the user is neither its owner nor admin.
            NotSupported: the server does not see its checkpoints.
            Conflict: another job waits for a copy of them.
        """
        found = await self._lookup.find(user, name, owner)
        job = found.public
        check_owner(user, job, "can remove its checkpoints")
        hint = f"while it runs, remove them by `client-lib exec {name} -- rm -r PATH`"
        files = await self._files_of(found, hint)
        if waiting := await self._waiting_for(found):
            raise Conflict(
                f"job {waiting} waits for a copy of the checkpoints of {name}",
                hint="remove none before it has started",
            )
        async with self._turns.of(user.name):
            pruned = await files.prune(request.keep, request.paths)
        gone = [
            EarlyCheckpoint(
                path=path,
                step=step,
                size=size,
                modified_at=datetime.fromtimestamp(modified, timezone.utc),
            )
            for path, step, size, modified in pruned.goes
        ]
        return PrunedCheckpoints(job=name, checkpoints=gone, stays=dict(pruned.stays))

    async def read(
        self, user: User, name: str, path: str, owner: str | None
    ) -> AsyncGenerator[bytes, None]:
        """A checkpoint of the list, as a tar archive. Raises what `prune` and `listed` raise;
        NotFound: it is not in the list."""
        found = await self._lookup.find(user, name, owner)
        hint = f"while it runs, copy it by `client-lib exec {name} -- tar c PATH | tar x`"
        answer = await self._metrics.checkpoints(user, found.public)
        files = await self._files_of(found, hint)
        if path not in (each.path for each in answer.checkpoints):
            raise NotFound(
                f"job {name} has no checkpoint {path}",
                hint=f"`client-lib checkpoints {name}` lists them",
            )
        content = self._content(user, files, path)
        await anext(content)  # a file that can't be opened is an error before the first byte
        return content

    async def _content(
        self, user: User, files: CheckpointFiles, path: str
    ) -> AsyncGenerator[bytes, None]:
        """The bytes of an archive, after b"" as soon as there are some."""
        async with self._turns.of(user.name), aclosing(files.read(path)) as blocks:
            first = await anext(blocks, b"")
            yield b""
            yield first
            async for block in blocks:
                yield block

    async def _files_of(self, found: StoredJob, hint: str) -> CheckpointFiles:
        """Raises NotSupported: the server does not see them."""
        attempt = await asyncio.to_thread(self._files.stored, found.row)
        files = self._runtime.checkpoint_files(attempt)
        if files is None:
            raise NotSupported(
                f"the checkpoints of job {found.row.name} are on disks of its workers, which this "
                "server does not see",
                hint=hint,
            )
        return files

    async def _still_there(
        self, user: User, found: StoredJob, seen: list[JobCheckpoint]
    ) -> list[JobCheckpoint]:
        """Leave out what was removed after the end of the job, when no launcher looks any more. If
        the disk does not answer soon, or is not seen from here, all are taken for there."""
        if not (seen and found.row.state.final):
            return seen
        paths = [each.path for each in seen]
        look = asyncio.create_task(self._gone(user, found, paths))
        try:
            done, _ = await asyncio.wait({look}, timeout=_LOOK_S)
        finally:
            look.cancel()
        gone = look.result() if done else set()
        return [each for each in seen if each.path not in gone]

    async def _gone(self, user: User, found: StoredJob, paths: list[str]) -> set[str]:
        with suppress(ClientLibError):
            files = await self._files_of(found, "")
            async with self._looks.of(user.name):
                return set(await files.gone(paths))
        return set()

    async def _waiting_for(self, found: StoredJob) -> str | None:
        """Name of a job that will start with a copy of the checkpoints of this one; None: there
        is none."""
        waiting = [
            active
            for active in self._jobs.by_id.values()
            if active.row.owner == found.row.owner and _never_ran(active)
        ]
        return await asyncio.to_thread(self._first_copying, waiting, found.public)

    def _first_copying(self, waiting: list[ActiveJob], job: JobInfo) -> str | None:
        for active in waiting:
            source = self._files.newest(active).checkpoints_from
            if source is not None and source.parent.name == job.id:
                return active.row.name
        return None


def _never_ran(active: ActiveJob) -> bool:
    return active.row.first_started_at is None and active.info.started_at is None
