"""The errors of this library, as one tree. A `code` carries the class over HTTP.

    ClientLibError                  error
    ├── InvalidRequest              invalid_request     a field, its value, what is allowed (also a ValueError)
    │   ├── NeverFits               never_fits          the job is larger than anything this server has
    │   ├── NotSupported            not_supported       known, but not on this runtime or not in this version
    │   └── TooLarge                too_large           a body, snapshot or spec over its bound
    ├── Unauthorized                unauthorized        no token, or an unknown one
    ├── Forbidden                   forbidden           the user may not do this
    ├── NotFound                    not_found           no such job, snapshot, attempt (also a LookupError)
    │   └── NoResult                no_result           the function has no result in that rank; with the reason
    ├── Conflict                    conflict            the name is taken, the job is running, ...
    │   ├── KeyReused               key_reused          the Idempotency-Key was used for another spec
    │   └── NotShared               not_shared          the server can't see the folder of the script
    ├── StorageFull                 storage_full        the server's disk is full; nothing was accepted
    ├── ServerError                 server_error        the server failed; its log has the reason
    │   └── Unavailable             unavailable         it is starting, stopping or overloaded: retry
    ├── ServerUnreachable           unreachable         no answer (client side; also a ConnectionError)
    ├── BadResponse                 bad_response        an answer that is not this server's (client side)
    ├── JobEnded                    job_ended           wait(): the job did not succeed; has the JobInfo
    │   ├── JobFailed               job_failed          it FAILED; the message is the failure report
    │   │   └── RemoteError         remote_error        its function's exception can't be rebuilt here
    │   └── JobCancelled            job_cancelled       it was CANCELLED
    └── WaitTimeout                 wait_timeout        wait(timeout): not final yet (also a TimeoutError)

Standard library only: the server, the client and `import client_lib` all load it.
"""

from __future__ import annotations

from typing import Any, ClassVar


class ClientLibError(Exception):
    """The root of the tree. `message` names the thing and the value, `hint` the way out.

    `str(error)` begins with "Error" like the messages of the ML Space platform, which scripts check for.
    """

    code: ClassVar[str] = "error"
    http_status: ClassVar[int] = 500

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"Error: {self.message}" + (f"\n{self.hint}" if self.hint else "")

    def body(self) -> dict[str, Any]:
        """The JSON object sent over HTTP: code, message and, if there is one, hint."""
        return {"code": self.code, "message": self.message} | ({"hint": self.hint} if self.hint else {})


class InvalidRequest(ClientLibError, ValueError):
    code = "invalid_request"
    http_status = 422


class NeverFits(InvalidRequest):
    code = "never_fits"


class NotSupported(InvalidRequest):
    code = "not_supported"


class TooLarge(InvalidRequest):
    code = "too_large"
    http_status = 413


class Unauthorized(ClientLibError):
    code = "unauthorized"
    http_status = 401


class Forbidden(ClientLibError):
    code = "forbidden"
    http_status = 403


class NotFound(ClientLibError, LookupError):
    code = "not_found"
    http_status = 404


class NoResult(NotFound):
    code = "no_result"


class Conflict(ClientLibError):
    code = "conflict"
    http_status = 409


class KeyReused(Conflict):
    code = "key_reused"


class NotShared(Conflict):
    code = "not_shared"


class StorageFull(ClientLibError):
    code = "storage_full"
    http_status = 507


class ServerError(ClientLibError):
    code = "server_error"


class Unavailable(ServerError):
    code = "unavailable"
    http_status = 503


class ServerUnreachable(ClientLibError, ConnectionError):
    code = "unreachable"


class BadResponse(ClientLibError):
    code = "bad_response"


class JobEnded(ClientLibError):
    """Raised by `wait()` for a job that did not succeed. `info` is its last JobInfo."""

    code = "job_ended"

    def __init__(self, message: str, *, hint: str | None = None, info: Any = None) -> None:
        super().__init__(message, hint=hint)
        self.info = info


class JobFailed(JobEnded):
    code = "job_failed"


class RemoteError(JobFailed):
    code = "remote_error"


class JobCancelled(JobEnded):
    code = "job_cancelled"


class WaitTimeout(ClientLibError, TimeoutError):
    code = "wait_timeout"


def _tree(root: type[ClientLibError]) -> dict[str, type[ClientLibError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        found |= _tree(child)
    return found


BY_CODE: dict[str, type[ClientLibError]] = _tree(ClientLibError)
"""Class by code: the server sends the code, the client raises the class."""
