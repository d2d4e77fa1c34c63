"""Reads the exception that ended a rank from its error file, or from its last lines. Pure."""

import json
import re
from typing import NamedTuple, Optional, Sequence, Tuple

_TRACEBACK = "Traceback (most recent call last):"
_BROUGHT_TRACEBACK = "Original Traceback (most recent call last):"
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
    span = _last_traceback(lines)
    if span is None:
        return Raised()
    begin, end = span
    last = end  # of a text that goes on below the name of its class
    while (
        lines[end].rstrip().endswith(":")
        and lines[last + 1 : last + 2]
        and (not lines[last + 1] or lines[last + 1][0].isspace())
    ):
        last += 1
    exception = "\n".join(lines[end : last + 1]).rstrip("\n")
    return Raised(exception, "\n".join(lines[begin : last + 1]) + "\n")


def headline(exception: str) -> str:
    """The first line of an exception, and the next one where the first ends with a colon."""
    lines = [line for line in exception.splitlines() if line.strip()] or [""]
    goes_on = lines[0].rstrip().endswith(":") and len(lines) > 1
    return "%s %s" % (lines[0].rstrip(), lines[1].strip()) if goes_on else lines[0]


def exception_before(lines: Sequence[str]) -> Raised:
    """The last traceback of a process that multiprocessing had started, in the lines before the
    traceback of the rank."""
    span = _last_traceback(lines)
    found = exception_of_lines(lines[: span[0]]) if span else Raised()
    is_of_child = re.search(r"[/\\]multiprocessing[/\\](spawn|process)\.py", found.traceback or "")
    return found if is_of_child else Raised()


def _last_traceback(lines: Sequence[str]) -> Optional[Tuple[int, int]]:
    """The first and the last line of the last traceback, whose last line is the exception."""
    starts = [number for number, line in enumerate(lines) if line == _TRACEBACK]
    if not starts:
        return None
    begin = starts[-1]
    end = _first_not_indented(lines, begin + 1)
    if end is not None and lines[end + 1 : end + 2] == [_BROUGHT_TRACEBACK]:
        end = _first_not_indented(lines, end + 2)
    if end is None:
        return None
    # up to the begin of the chain; empty lines surround its markers
    for earlier in reversed(starts[:-1]):
        if begin < 2 or lines[begin - 2] not in CHAINED:
            break
        begin = earlier
    return begin, end


def _first_not_indented(lines: Sequence[str], begin: int) -> Optional[int]:
    """The number of the line after the frames of a traceback."""
    numbers = (n for n in range(begin, len(lines)) if lines[n] and not lines[n].startswith(" "))
    return next(numbers, None)


# --- exceptions of other threads and processes

_BROUGHT = (
    r"[\w.]+: (?:Caught \w+ (?P<where>in [^\n]{1,100})\.\n"
    r"|\s*-- Process (?P<process>\d+) terminated with the following error:\n)"
)
"""The begin of an exception whose text has the whole traceback of another exception: PyTorch raises
it for a worker or thread of a DataLoader, and for a process of `torch.multiprocessing.spawn`."""


def unwrapped(exception: str) -> str:
    """The exception of another thread or process, out of the exception that holds its traceback.
    Another text is returned as it is."""
    brought = re.match(_BROUGHT, exception)
    lines = exception.splitlines()
    starts = [n for n, line in enumerate(lines) if line in (_TRACEBACK, _BROUGHT_TRACEBACK)]
    end = _first_not_indented(lines, starts[-1] + 1) if brought and starts else None
    if brought is None or end is None:
        return exception
    where = brought.group("where") or "in process %s" % brought.group("process")
    return "\n".join(["%s (%s)" % (lines[end], where), *lines[end + 1 :]])
