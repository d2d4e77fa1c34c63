"""Turns jobs into rows of the database, and rows into jobs."""

import json
from typing import Any

from client_lib.spec.replace import replaced
from client_lib.spec.request import CodeSnapshot
from client_lib.spec.states import TRANSITIONS, Reason, State, as_sent
from client_lib.spec.wire import JobInfo
from server_stub.service import stand_ins
from server_stub.service.active import ActiveJob, StoredJob
from server_stub.service.lifecycle import JobStatus, Stop
from server_stub.store.rows import JobRow, attention_column

VERSIONS_NOT_STORED = 100_000
"""A restart of the server adds this to the version, so that no version that was shown and
not stored is used twice.
"""


def row_of(info: JobInfo, **columns: Any) -> JobRow:
    """The row of a job that is not stored yet. `columns`: values that do not follow from `info`."""
    return JobRow(
        id=info.id,
        owner=info.owner,
        name=info.name,
        state=info.state,
        version=info.version,
        attempt=info.attempt,
        created_at=info.created_at,
        info=info.model_dump_json(),
        first_started_at=info.started_at,
        finished_at=info.finished_at,
        snapshot=info.code.sha256 if isinstance(info.code, CodeSnapshot) else None,
        function=info.function.sha256 if info.function else None,
        group_id=info.group.id if info.group else None,
        attention=attention_column(info.attention),
        **columns,
    )


def found(row: JobRow) -> StoredJob:
    """Make the StoredJob of a row. In place of text that can't be read, users see why."""
    try:
        return StoredJob(row, JobInfo.model_validate_json(row.info))
    except ValueError as error:
        info = stand_ins.of_row(row, error)
        return StoredJob(row._replace(info=info.model_dump_json()), info)


def from_row(row: JobRow) -> ActiveJob:
    """Make the ActiveJob of a job of an earlier server process. One that can't be
    read is stopped and fails.
    """
    try:
        info = JobInfo.model_validate_json(row.info)
        if (info.id, info.state, info.attempt) != (
            row.id,
            State(row.state),
            row.attempt,
        ) or row.created_at is None:
            raise ValueError("its columns and its text differ")
        stop = _stop_of(json.loads(row.stop)) if row.stop else None
        hung = info.message if info.reason is Reason.HUNG and info.state is State.RUNNING else ""
    except (ValueError, KeyError, TypeError) as error:
        state = row.state if row.state in TRANSITIONS else State.RUNNING
        row = row._replace(state=state, attempt=max(row.attempt, 1), resume_at=None)
        shown = stand_ins.of_row(row, error)
        info = replaced(shown, state=state, reason=Reason.QUEUED, message="")
        row = row._replace(created_at=info.created_at)
        stop = Stop(Reason.SERVER_ERROR, shown.message)
        hung = ""
    info = replaced(info, version=row.version + VERSIONS_NOT_STORED)
    return ActiveJob(
        row, info, JobStatus(info, stop, hung, row.resume_at), remove_at_end=row.remove_at_end
    )


def _stop_of(order: Any) -> Stop:
    """The stored order to stop. A reason of a newer version is kept as its text."""
    reason = as_sent(Reason, order["reason"])
    interrupt = order.get("interrupt", False)  # a server of an older version stored none
    return Stop(reason, order["message"], order["retry"], interrupt)
