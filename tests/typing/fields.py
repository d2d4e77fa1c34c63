"""Names of fields that mypy must refuse. Checked by mypy --strict (`make check`), never run.

An ignored error that does not occur is an error itself, so a name that is no longer refused fails
the check.
"""

from client_lib.spec.job import JobSpec
from client_lib.spec.replace import replaced
from client_lib.spec.states import Reason, State
from client_lib.spec.wire import JobInfo
from server_stub.service.lifecycle import JobStatus


def decide(status: JobStatus) -> JobStatus:
    status.shows(mesage="x")  # type: ignore[call-arg]
    status.shows(attempt="3")  # type: ignore[arg-type]
    return status.shows(state=State.RUNNING, reason=Reason.RUNNING, message="", attempt=3)


def copied(info: JobInfo, spec: JobSpec) -> JobInfo:
    replaced(spec, nmae="x")  # type: ignore[call-arg]
    replaced(spec, n_workers="2")  # type: ignore[arg-type]
    return replaced(info, spec=replaced(spec, name="x", n_workers=2), version=3)
