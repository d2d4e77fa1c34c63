"""How a worker ended, from how its ranks ended: which one failed first, what that is called, what is reported. Pure.

Standard library only, Python >= 3.8.
"""

import json
import re
from typing import List, NamedTuple, Optional, Sequence, Tuple

# values of client_lib.spec.states.Reason, which this package may not import
COMPLETED, EXIT_CODE, SIGNAL, OUT_OF_MEMORY = "Completed", "ExitCode", "Signal", "OutOfMemory"
START_FAILED, CODE_FETCH, CANCELLED = "StartFailed", "CodeFetch", "Cancelled"

LAST_LINES = 50
_TRACEBACK = "Traceback (most recent call last):"
_SAME_MOMENT_S = 2.0
_OF_ANOTHER = (  # compiled when a rank failed: most launchers never need it
    r"closed by peer|reset by peer|Broken pipe|DistBackendError|DistNetworkError|DistStoreError|NCCL error"
    r"|remote process exited|Connection refused|Timed out .*(waiting|after)|Socket Timeout|recvValue failed|gloo"
)


class Ended(NamedTuple):
    """How one rank ended. Times are seconds since 1970, UTC."""

    rank: int
    exit_code: Optional[int]
    signal: Optional[int]
    started_at: float
    ended_at: float
    failed_at: float
    """When it failed: when its exception was caught, where that is known, else when it ended."""
    stopped_by_us: bool
    exception: Optional[str]
    traceback: Optional[str]
    last_lines: List[str]

    @property
    def failed(self) -> bool:
        return self.exit_code != 0

    @property
    def code(self) -> int:
        """As a shell says it: 128 + signal for a killed one."""
        return 128 + self.signal if self.signal is not None else self.exit_code or 0


class Outcome(NamedTuple):
    exit_code: int
    reason: str
    message: str
    first: Optional[Ended]
    """The first failing rank."""


def of_ranks(ranks: Sequence[Ended], cancelled: bool, oom_kills: int) -> Outcome:
    """`cancelled`: the worker was stopped from outside. `oom_kills`: processes that the kernel killed meanwhile."""
    first = first_failure(ranks)
    if cancelled:
        code = next((rank.code for rank in ranks if rank.failed), 0)
        return Outcome(code, CANCELLED, "stopped", None)
    if first is None:
        return Outcome(0, COMPLETED, "every rank ended with exit code 0", None)
    if first.signal is None:
        message = "rank %d ended with exit code %d" % (first.rank, first.code)
        return Outcome(first.code, EXIT_CODE, message + _because(first), first)
    if first.signal == 9 and oom_kills:
        message = "rank %d was killed: the machine or its cgroup ran out of memory" % first.rank
        return Outcome(first.code, OUT_OF_MEMORY, message, first)
    return Outcome(first.code, SIGNAL, "rank %d was killed by signal %d" % (first.rank, first.signal), first)


def first_failure(ranks: Sequence[Ended]) -> Optional[Ended]:
    """The rank that failed first, not one of those that died of it.

    Peers of a dead rank fail within milliseconds of it, and their end may be seen before its own: among those that
    failed in the same moment, one whose exception does not speak of a lost peer goes first.
    """
    failed = [rank for rank in ranks if rank.failed and not (rank.stopped_by_us and rank.exception is None)]
    failed = failed or [rank for rank in ranks if rank.failed]
    if not failed:
        return None
    earliest = min(rank.failed_at for rank in failed)
    moment = [rank for rank in failed if rank.failed_at <= earliest + _SAME_MOMENT_S]
    return min(moment, key=lambda rank: (_speaks_of_a_peer(rank), rank.failed_at, rank.rank))


def _speaks_of_a_peer(rank: Ended) -> bool:
    text = rank.exception or (rank.last_lines[-1] if rank.signal is None and rank.last_lines else "")
    return bool(re.search(_OF_ANOTHER, text, re.IGNORECASE))


def _because(rank: Ended) -> str:
    return ": " + rank.exception.splitlines()[0] if rank.exception else ""


def exception_of_error_file(text: str) -> Tuple[Optional[str], Optional[str]]:
    """(exception, traceback) from a TORCHELASTIC_ERROR_FILE, in torch's format or its older one, a bare message."""
    try:
        message = json.loads(text)["message"]
    except (ValueError, KeyError, TypeError):
        return None, None
    if isinstance(message, str):
        return message, None
    if not isinstance(message, dict) or not isinstance(message.get("message"), str):
        return None, None
    extra = message.get("extraInfo")
    trace = extra.get("py_callstack") if isinstance(extra, dict) else None
    return message["message"], trace if isinstance(trace, str) else None


def exception_of_lines(lines: Sequence[str]) -> Tuple[Optional[str], Optional[str]]:
    """(exception, traceback) of the last Python traceback in a rank's lines; (None, None) without one."""
    starts = [number for number, line in enumerate(lines) if line == _TRACEBACK]
    if not starts:
        return None, None
    start = starts[-1]
    for end in range(start + 1, len(lines)):
        if lines[end] and not lines[end].startswith(" "):
            return lines[end], "\n".join(lines[start : end + 1]) + "\n"
    return None, None
