"""Makes the Attempt for a runtime from the stored row, the submit request and the snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from client_lib.errors import ServerError
from client_lib.spec.job import JobSpec
from client_lib.spec.request import Code, CodeInPlace, CodeSnapshot, Dependency, SubmitRequest
from client_lib.spec.states import State
from client_lib.spec.validation import STORED
from server_stub.files.request_log import RequestLog
from server_stub.files.snapshots import Snapshots
from server_stub.runtimes import CHECKPOINTS, Attempt, Source
from server_stub.service.active import ActiveJob
from server_stub.store import Store, group_rows
from server_stub.store.rows import JobRow

_DRY_RUN_ID = "0" * 32
_UNREADABLE = SubmitRequest(spec=JobSpec(script="unreadable"), code=CodeInPlace())


def without_proof(code: Code) -> Code:
    return CodeInPlace(sha256=code.sha256) if isinstance(code, CodeInPlace) else code


@dataclass(frozen=True)
class Attempts:
    """One per service."""

    request_log: RequestLog
    snapshots: Snapshots
    jobs_dir: Path
    store: Store

    def request_of(self, row: JobRow) -> SubmitRequest:
        """The submit request with the values of its secrets, unmasked, without the proof of a shared folder.

        Raises:
            ServerError: the file is gone or damaged.
        """
        try:
            request = SubmitRequest.model_validate_json(self.request_log.read(row.place), context=STORED)
            return request.model_copy(update={"code": without_proof(request.code)})
        except Exception as error:  # noqa: BLE001  # damaged; the message leaves out its text, which holds secrets
            raise ServerError(f"what was submitted as {row.name} can't be read: {type(error).__name__}") from None

    def newest(self, active: ActiveJob) -> Attempt:
        """The newest attempt of a job, `unreadable` if its request is. Its directory is made by the runtime at the
        start."""
        row, number = active.row, active.status.attempt
        try:
            return self._of_row(row, number, active.request)
        except ServerError as error:
            unknown = self._of_row(row, number, _UNREADABLE)
            return replace(unknown, unreadable=error.message, never_started=False, reload=None)

    def stored(self, row: JobRow) -> Attempt:
        return self._of_row(row, row.attempt)

    def dry_run(self, request: SubmitRequest, owner: str, name: str) -> Attempt:
        """The attempt that a submit would make; the same for the same request."""
        long_ago = datetime(1970, 1, 1, tzinfo=timezone.utc)
        return self._of_row(JobRow(_DRY_RUN_ID, owner, name, State.PENDING, 1, 1, long_ago, info=""), 1, request)

    def job_dir(self, job_id: str) -> Path:
        return self.jobs_dir / job_id

    def _of_row(self, row: JobRow, number: int, given: SubmitRequest | None = None) -> Attempt:
        """`given`: the request of a job that was never started; None: it is read from the disk."""
        request = given or self.request_of(row)
        code = request.code
        return Attempt(
            job_id=row.id,
            owner=row.owner,
            job_name=row.name,
            number=number,
            spec=request.spec,
            code=code,
            submitter=request.submitter,
            secret_values=request.secret_values,
            job_dir=self.job_dir(row.id),
            snapshot=self.snapshots.path(code.sha256) if isinstance(code, CodeSnapshot) else None,
            function=self.snapshots.path(request.function.sha256) if request.function else None,
            checkpoints_from=self.job_dir(request.checkpoints_of) / CHECKPOINTS if request.checkpoints_of else None,
            checkpoints_name=request.checkpoints_name,
            namespace=request.namespace,
            after=partial(self._sources, request.dependencies) if request.dependencies else None,
            created_at=row.created_at,
            never_started=given is not None,
            reload=partial(self._of_row, row, number),
        )

    async def _sources(self, dependencies: Sequence[Dependency]) -> list[list[Source]]:
        """See `Attempt.after`. Raises StoreError."""
        found = [await self.store.read_all(group_rows.job_or_members, each.id) for each in dependencies]
        return [
            [Source(self.job_dir(row.id), row.attempt, row.name if row.group_id == each.id else "") for row in of_it]
            for each, of_it in zip(dependencies, found, strict=True)
        ]
