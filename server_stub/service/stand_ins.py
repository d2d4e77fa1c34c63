"""Makes what users see in place of a job whose record can't be read."""

from datetime import datetime, timezone
from typing import Any

from pydantic import ValidationError

from client_lib.spec.job import JobSpec
from client_lib.spec.refusals import invalid_request
from client_lib.spec.request import CodeInPlace
from client_lib.spec.states import Reason, State
from client_lib.spec.wire import JobInfo
from server_stub.store.rows import JobRow


def stand_in(
    job_id: str, owner: str, name: str, created_at: datetime | None, **known: Any
) -> JobInfo:
    """A JobInfo in place of a record that can't be read, by what is known of
    the job. `known`: more fields.
    """
    facts = {
        "version": 1,
        "runtime": "",
        "state": State.PENDING,
        "reason": Reason.QUEUED,
        "code": CodeInPlace(),
    }
    known = {**facts, "spec": JobSpec(script="unknown"), **known}
    created_at = created_at or datetime.fromtimestamp(0, timezone.utc)
    return JobInfo(id=job_id, owner=owner, name=name, created_at=created_at, **known)


def of_row(row: JobRow, error: Exception) -> JobInfo:
    """A JobInfo for users in place of a row that can't be read, and the reason."""
    what = (
        invalid_request(error, JobInfo).message
        if isinstance(error, ValidationError)
        else str(error)
    )
    return stand_in(
        *(row.id, row.owner, row.name, row.created_at),
        version=row.version,
        attempt=row.attempt,
        state=row.state if row.state.final else State.FAILED,
        reason=Reason.SERVER_ERROR,
        message=f"its record in the database can't be read: {what.splitlines()[0][:500]}",
        spec=JobSpec(script="unreadable"),
    )
