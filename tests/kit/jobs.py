"""Answers of the server about a job, as models and as JSON, for tests of what shows them."""

from datetime import datetime, timezone
from typing import Any

from client_lib.spec.job import JobSpec
from client_lib.spec.request import CodeInPlace
from client_lib.spec.states import Reason, State
from client_lib.spec.wire import JobInfo

CREATED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


def job_info(
    name: str = "train",
    state: State = State.RUNNING,
    reason: Reason = Reason.RUNNING,
    message: str = "",
    **fields: Any,
) -> JobInfo:
    """A job with these fields, of which `spec` may be a dict; the others have plain values."""
    spec = fields.pop("spec", {"script": "/home/ann/train.py", "n_workers": 2})
    usual: dict[str, Any] = {
        "id": f"id-of-{name}",
        "owner": "ann",
        "version": 3,
        "runtime": "local",
        "code": CodeInPlace(),
        "created_at": CREATED,
    }
    return JobInfo(
        **usual | fields,
        name=name,
        state=state,
        reason=reason,
        message=message,
        spec=spec if isinstance(spec, JobSpec) else JobSpec(**spec),
    )


def job_json(name: str = "a", state: str = "RUNNING", **fields: Any) -> dict[str, Any]:
    """The part of a job's JSON that tables and comparisons read."""
    return {
        "name": name,
        "state": state,
        "created_at": "2026-01-02T03:00:00Z",
        "spec": {"script": "train.py"},
        **fields,
    }
