"""Makes what a runtime is given out of what is stored: the row, the submitter's record, the snapshot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from client_lib.errors import ServerError
from client_lib.spec.wire import CodeSnapshot, SubmitRequest
from server_stub.runtimes import CHECKPOINTS, Attempt
from server_stub.service.active import Active
from server_stub.service.admission import without_proof
from server_stub.snapshots import Snapshots
from server_stub.store.rows import JobRow
from server_stub.submissions import Submissions

_DRY_RUN_ID = "0" * 32


@dataclass(frozen=True)
class Attempts:
    """One per service."""

    submissions: Submissions
    snapshots: Snapshots
    jobs_dir: Path

    def request_of(self, row: JobRow) -> SubmitRequest:
        """What was submitted, unmasked, with the values of its secrets; the proof has served its purpose.

        Raises:
            ServerError: the file is gone or damaged.
        """
        try:
            request = SubmitRequest.model_validate_json(self.submissions.read(row.place))
            return request.model_copy(update={"code": without_proof(request.code)})
        except (OSError, ValueError) as error:  # the values in it are secrets: nothing of the text is repeated here
            raise ServerError(f"what was submitted as {row.name} can't be read: {type(error).__name__}") from None

    def newest(self, active: Active) -> Attempt:
        """The newest attempt of a job. The runtime makes its directory when it starts: a job that waits has none."""
        return self._of_row(active.row, active.job.attempt, active.request)

    def stored(self, row: JobRow) -> Attempt:
        """The newest attempt as it was stored; nothing is made."""
        return self._of_row(row, row.attempt)

    def dry_run(self, request: SubmitRequest, name: str) -> Attempt:
        """What a submit would give; the same twice."""
        return self._make(_DRY_RUN_ID, "", name, 1, request, datetime(1970, 1, 1, tzinfo=timezone.utc))

    def _of_row(self, row: JobRow, number: int, request: SubmitRequest | None = None) -> Attempt:
        """`request`: of a job that was accepted just now; None: it is read from the disk."""
        return self._make(
            row.id,
            row.owner,
            row.name,
            number,
            request or self.request_of(row),
            row.created_at,
            fresh=request is not None,
            again=partial(self._of_row, row, number),
        )

    def job_dir(self, job_id: str) -> Path:
        return self.jobs_dir / job_id

    def _make(
        self,
        job_id: str,
        owner: str,
        name: str,
        number: int,
        request: SubmitRequest,
        created_at: datetime,
        *,
        fresh: bool = False,
        again: Callable[[], Attempt] | None = None,
    ) -> Attempt:
        code = request.code
        return Attempt(
            job_id=job_id,
            owner=owner,
            job_name=name,
            number=number,
            spec=request.spec,
            code=code,
            submitter=request.submitter,
            secret_values=request.secret_values,
            job_dir=self.job_dir(job_id),
            snapshot=self.snapshots.path(code.sha256) if isinstance(code, CodeSnapshot) else None,
            function=self.snapshots.path(request.function.sha256) if request.function else None,
            checkpoints_from=self.job_dir(request.checkpoints_of) / CHECKPOINTS if request.checkpoints_of else None,
            created_at=created_at,
            fresh=fresh,
            again=again,
        )
