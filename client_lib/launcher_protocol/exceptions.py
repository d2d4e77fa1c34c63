"""Reads the exception that ended a rank from its error file, or from its last lines. Pure."""

import json
from typing import NamedTuple, Optional, Sequence

_TRACEBACK = "Traceback (most recent call last):"
CHAINED = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)


class Raised(NamedTuple):
    """The exception that ended a rank's program; the process may live on for a while."""

    exception: Optional[str] = None
    traceback: Optional[str] = None
    at: Optional[float] = None
    """None: the time is not known."""


def exception_of_error_file(text: str) -> Raised:
    """Read a TORCHELASTIC_ERROR_FILE of torch, also an older, bare message. Only our
    rank runner notes the time.
    """
    try:
        message = json.loads(text)["message"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return Raised()
    if isinstance(message, str):
        return Raised(message)
    if not isinstance(message, dict) or not isinstance(message.get("message"), str):
        return Raised()
    extra = message.get("extraInfo")
    extra = extra if isinstance(extra, dict) else {}
    trace = extra.get("py_callstack")
    at = extra.get("raised_at")
    is_time = isinstance(at, float) and at > 0  # not NaN, which is no time
    return Raised(
        message["message"], trace if isinstance(trace, str) else None, at if is_time else None
    )


def exception_of_lines(lines: Sequence[str]) -> Raised:
    """The last Python traceback in a rank's lines, with the exceptions that it was raised from."""
    starts = [number for number, line in enumerate(lines) if line == _TRACEBACK]
    if not starts:
        return Raised()
    begin = starts[-1]
    ends = (
        number
        for number in range(begin + 1, len(lines))
        if lines[number] and not lines[number].startswith(" ")
    )
    end = next(ends, None)
    if end is None:
        return Raised()
    # up to the begin of the chain; empty lines surround its markers
    for earlier in reversed(starts[:-1]):
        if begin < 2 or lines[begin - 2] not in CHAINED:
            break
        begin = earlier
    return Raised(lines[end], "\n".join(lines[begin : end + 1]) + "\n")
