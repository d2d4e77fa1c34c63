"""Following a job to its end: its logs on stdout, its report on stderr, its outcome as the exit code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from client_lib.cli import exits, printer

if TYPE_CHECKING:
    from client_lib.job import Job


def follow(job: Job, collapse: bool = False) -> int:
    """The exit code of the job. Raises JobFailed or JobCancelled with the report.

    Ctrl-C ends the look: `logs` says that the job goes on, and the job's notices before its lines.
    """
    job.logs(follow=True, collapse=collapse)
    with goes_on(job):
        info = job.wait()
    printer.hint(f"{info.name} {info.state}; `client-lib logs {info.name}` shows it again")
    return exits.DONE


@contextmanager
def goes_on(job: Job) -> Iterator[None]:
    """Ctrl-C in the block ends our look at the job; say that the job goes on."""
    from client_lib import log_output

    try:
        yield
    except KeyboardInterrupt:
        printer.hint(log_output.goes_on(job.name or "").rstrip())
        raise
