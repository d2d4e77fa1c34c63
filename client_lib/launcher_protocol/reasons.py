"""Reasons with which a worker ends: values of `client_lib.spec.states.Reason`, which a pod cannot
import. A test compares them.
"""

from typing import Sequence

from client_lib.durable import is_full

CANCELLED = "Cancelled"
CODE_FETCH = "CodeFetch"
COMPLETED = "Completed"
EXIT_CODE = "ExitCode"
LAUNCHER_LOST = "LauncherLost"
NODE_LOST = "NodeLost"
OUT_OF_MEMORY = "OutOfMemory"
PREFLIGHT_FAILED = "PreflightFailed"
SETUP_FAILED = "SetupFailed"
SIGNAL = "Signal"
START_FAILED = "StartFailed"
STORAGE_FULL = "StorageFull"
TIMEOUT = "Timeout"


class CannotStart(Exception):
    """No rank can be started. `reason` is a value of client_lib.spec.states.Reason."""

    def __init__(
        self, reason: str, message: str, exit_code: int = 1, last_lines: Sequence[str] = ()
    ) -> None:
        """`exit_code`, `last_lines`: of the program that was to prepare the worker."""
        super().__init__(message)
        self.reason = reason
        self.exit_code = exit_code
        self.last_lines = last_lines


def reason_of(error: Exception, otherwise: str) -> str:
    """Choose the reason of a failure: a full disk, or `otherwise`."""
    return STORAGE_FULL if is_full(error) else otherwise
