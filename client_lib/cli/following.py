"""Following a job to its end: its logs on stdout, its report on stderr, its outcome as the exit code."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from client_lib.cli import exits, printer
from client_lib.cli.connection import Connection


def follow(connection: Connection, name: str) -> int:
    """The exit code of the job. Raises JobFailed or JobCancelled with the report."""
    job = connection.client.get_job(name)
    with goes_on(name):
        job.logs(follow=True, file=sys.stdout)
        info = job.wait()
    printer.hint(f"{name} {info.state}")
    return exits.DONE


@contextmanager
def goes_on(name: str) -> Iterator[None]:
    """Ctrl-C in the block ends our look at the job; say that the job goes on."""
    try:
        yield
    except KeyboardInterrupt:
        printer.hint(f"\n{name} goes on; `client-lib logs -f {name}` follows it, `client-lib cancel {name}` stops it")
        raise
