"""What can go wrong, in words for the person at the prompt. Every refusal of
this folder is one of these.
"""


class ClusterError(Exception):
    """Something of the cluster failed; the text names the thing and where to look."""

    exit_code = 1


class Missing(ClusterError):
    """This machine lacks something; one line says what, and how to get it."""

    exit_code = 69  # EX_UNAVAILABLE of sysexits.h


class Unready(ClusterError):
    """A component did not become ready in time, or ended; the text holds
    the last lines of its log.
    """


class ApiError(ClusterError):
    """The API server refused. `status` is HTTP's; 0: no answer at all."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
