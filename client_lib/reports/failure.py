"""The report about a failed job, which `wait()` raises: JobInfo in, text out. Pure.

    job train-x7k2m FAILED (ExitCode): rank 3 on worker 1 ended with exit code 1
    ValueError: too many values
    The last lines of rank 3:
        epoch 3
        Traceback (most recent call last):
        ...

The server finds the causes and hints, because it has the reports of the ranks.
"""

from __future__ import annotations

from client_lib.errors import JobCancelled, JobEnded, JobFailed
from client_lib.spec.states import State
from client_lib.spec.wire import Failure, JobInfo

LINES = 20  # of the failing rank's last lines; `client-lib logs` has the rest


def ended(info: JobInfo) -> JobEnded:
    """The exception for a job that is final and not SUCCEEDED."""
    if info.state is State.CANCELLED:
        return JobCancelled(f"job {info.name} was cancelled{_because(info.message)}", info=info)
    return JobFailed(report(info), hint=hint(info), info=info)


def report(info: JobInfo) -> str:
    """The report on some lines; the first one is a complete summary."""
    failure = info.failure
    first = f"job {info.name} FAILED ({info.reason}): {_what(failure) or info.message or 'no reason is known'}"
    if info.attempt > 1:
        first += f" in attempt {info.attempt}"
    if failure is None:
        return first
    lines = [first]
    if failure.exception:
        lines.append(failure.exception)
    if failure.last_lines:
        lines.append(f"The last lines{'' if failure.rank is None else f' of rank {failure.rank}'}:")
        lines += [f"    {line}" for line in failure.last_lines[-LINES:]]
    return "\n".join(lines)


def hint(info: JobInfo) -> str:
    """The way out where the cause is known, and the command that shows more."""
    rank = info.failure.rank if info.failure else None
    more = f"see more: client-lib logs {info.name}" + ("" if rank is None else f" --rank {rank}")
    known = info.failure.hint if info.failure else None
    return f"{known}\n{more}" if known else more


def _what(failure: Failure | None) -> str | None:
    """The failing rank and its end; None: no rank is to blame."""
    if failure is None or failure.rank is None:
        return failure.meaning if failure else None
    who = f"rank {failure.rank}" + ("" if failure.worker is None else f" on worker {failure.worker}")
    if failure.exit_code is None:
        return f"{who} ended{_because(failure.meaning)}"
    return f"{who} ended with exit code {failure.exit_code}{_because(failure.meaning)}"


def _because(words: str | None) -> str:
    return f" ({words})" if words else ""
