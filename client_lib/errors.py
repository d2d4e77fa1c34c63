"""The errors of this library, as one tree. A `code` carries the class over HTTP.

Standard library only: the server, the client and `import client_lib` all load it.
"""

from collections.abc import Callable
from typing import Any, ClassVar

from client_lib import visible_text


class ClientLibError(Exception):
    """The root of the tree. `message` names the thing and the value, `hint` the way
    out; `str(error)` is both.
    """

    code: ClassVar[str] = "error"
    http_status: ClassVar[int] = 500

    def __init_subclass__(cls, code: str = "", http_status: int = 0) -> None:
        if code:
            cls.code = code
            BY_CODE[code] = cls
        if http_status:  # an assignment here hides the value of a second base class
            cls.http_status = http_status

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        """The text for people; `message` and `hint` are as they came."""
        return visible_text.plain(self.message + (f"\n{self.hint}" if self.hint else ""))

    def body(self) -> dict[str, Any]:
        """The JSON object sent over HTTP: code, message and, if there is one, hint."""
        return {"code": self.code, "message": self.message} | (
            {"hint": self.hint} if self.hint else {}
        )


BY_CODE = {ClientLibError.code: ClientLibError}
"""Class by code: the server sends the code, the client raises the class."""


class InvalidRequest(ClientLibError, ValueError, code="invalid_request", http_status=422):
    """A field or its value is wrong; the message says what is allowed."""


class NeverFits(InvalidRequest, code="never_fits"):
    """The job is larger than anything that this server has."""


class NotSupported(InvalidRequest, code="not_supported"):
    """It is known, but does not exist on this runtime or in this version."""


class TooLarge(InvalidRequest, code="too_large", http_status=413):
    """A body, snapshot or spec is over its bound."""


class Unauthorized(ClientLibError, code="unauthorized", http_status=401):
    """The token is missing or unknown."""


class Forbidden(ClientLibError, code="forbidden", http_status=403):
    """The user may not do this."""


class NotFound(ClientLibError, LookupError, code="not_found", http_status=404):
    """No such job, snapshot or attempt exists."""


class NoResult(NotFound, code="no_result"):
    """The function has no result in that rank; the message gives the reason."""


class Conflict(ClientLibError, code="conflict", http_status=409):
    """The name is taken, the job is running, or the like."""


class KeyReused(Conflict, code="key_reused"):
    """The Idempotency-Key was used for another spec."""


class NotShared(Conflict, code="not_shared"):
    """The server can't see the folder of the script."""


class StorageFull(ClientLibError, code="storage_full", http_status=507):
    """The server's disk is full; nothing was accepted."""


class ServerError(ClientLibError, code="server_error"):
    """The server failed; its log has the reason."""


class Unavailable(ServerError, code="unavailable", http_status=503):
    """The server is starting, stopping or overloaded: try again."""


class ServerUnreachable(ClientLibError, ConnectionError, code="unreachable"):
    """The server does not answer. Raised by the client alone."""


class BadResponse(ClientLibError, code="bad_response"):
    """The answer is not of this server. Raised by the client alone."""


class JobEnded(ClientLibError, code="job_ended"):
    """`wait()` found that the job did not succeed. `info` is its last JobInfo.

    `printed`: the whole log was printed just before: the message has none of its lines. `card`:
    HTML for notebooks.
    """

    card: Callable[[], str] | None = None

    def __init__(
        self, message: str, *, hint: str | None = None, info: Any = None, printed: bool = False
    ) -> None:
        super().__init__(message, hint=hint)
        self.info = info
        self.printed = printed

    def _render_traceback_(self) -> list[str]:
        """Let IPython show the report alone: the frames of this library explain nothing."""
        first, *rest = str(self).splitlines()
        return [f"\x1b[1;31m{type(self).__name__}\x1b[0m: {first}", *rest]

    def _repr_html_(self) -> str | None:
        """The report as a card for notebooks; None: they show the text."""
        return self.card() if self.card else None


class JobFailed(JobEnded, code="job_failed"):
    """The job FAILED; the message is the report of the failure."""


class RemoteError(JobFailed, code="remote_error"):
    """The exception of the job's function can't be rebuilt here."""


class JobCancelled(JobEnded, code="job_cancelled"):
    """The job was CANCELLED."""


class WaitTimeout(ClientLibError, TimeoutError, code="wait_timeout"):
    """The job is not final after the time given to `wait`."""
