"""`client-lib run`: a job in the foreground. This program lives as long as the job, and the job no longer than this
program.

Ctrl-C at `submit -f` stops following. Here Ctrl-C, a closed terminal and SIGTERM cancel the job, and its output is
shown to the end.
"""

from __future__ import annotations

import os
import signal
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from client_lib.cli import Exit, printer, submit_steps
from client_lib.cli.connection import Connection
from client_lib.cli.job_options import ConfigOption, JobCommand, with_job_options
from client_lib.cli.parameters import CommandApp
from client_lib.cli.submit_steps import NoCheck
from client_lib.errors import ClientLibError, JobCancelled, JobFailed
from client_lib.worker.plan import STDIN

if TYPE_CHECKING:
    from client_lib.job import Job
    from client_lib.spec.wire import JobInfo

_ENDING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]

app = CommandApp()


@app.command(
    cls=JobCommand,
    context_settings=submit_steps.STOP_AT_SCRIPT,
    epilog="""\b
Examples:
  client-lib run train.py --epochs 3
  client-lib run --processes-per-worker 4 train.py    as torchrun --nproc-per-node 4 train.py
  client-lib run torchrun --nproc-per-node 4 train.py

\b
Exit code:
  0 SUCCEEDED; else that of the first failing rank, 128 + N where signal N ended it; 3 cancelled by another;
  130 after Ctrl-C
""",
)
@with_job_options
def run(
    ctx: typer.Context, connection: Connection, config: ConfigOption = None, no_check: NoCheck = False, **values: Any
) -> int:
    """Run SCRIPT in the foreground, as torchrun would.

    Output as it comes; on this machine rank 0 reads this terminal (breakpoint() works on one process). Ctrl-C cancels
    the job, with its grace period; a second one stops waiting for that. The job's record and its logs stay.
    """
    described = submit_steps.job_of(ctx, connection, config, values)
    job = described.job
    _lend_stdin()
    foreground = Foreground(job)
    try:
        with foreground.held():
            name = submit_steps.submit(described, not no_check).name
            foreground.submitted()
            printer.hint(f'Job "{name}" created.')
            printer.count_submit()
            job.logs(follow=True)
            submit_steps.end_of_followed(job)
    except (JobFailed, JobCancelled) as problem:
        printer.error(problem)
        return _exit_code(problem, foreground.signal)
    return Exit.DONE


class Foreground:
    """Cancels `job` at the first signal that would end this program; a second signal ends this program."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.signal: int | None = None
        """The signal that came; None: none did."""
        self._before: dict[int, Any] = {}

    @contextmanager
    def held(self) -> Iterator[None]:
        """The block submits the job and sees it to its end. Left in another way, it cancels the job."""
        self._before = {signum: signal.signal(signum, self._on_signal) for signum in _ENDING}
        try:
            yield
        except (JobFailed, JobCancelled):
            raise
        except BaseException:
            self._cancel()  # the reader of our output is gone, the server is, or Ctrl-C came twice
            raise
        finally:
            self._restore()

    def submitted(self) -> None:
        """Note that the job exists now. A signal that came before found nothing to cancel."""
        if self.signal is not None:
            self._cancel()

    def _on_signal(self, signum: int, frame: object) -> None:
        del frame
        self.signal = signum
        self._restore()
        if self._job.job_name:
            # in a thread: this one may be in the middle of a call to the same server
            threading.Thread(target=self._cancel, name="client_lib-cancel").start()

    def _cancel(self) -> None:
        if not self._job.job_name:
            return
        try:
            self._job.cancel()
        except ClientLibError as problem:
            printer.error(problem)
            printer.hint(f"`client-lib cancel {self._job.job_name}` stops the job")

    def _restore(self) -> None:
        for signum, before in self._before.items():
            signal.signal(signum, before)


def _exit_code(problem: JobFailed | JobCancelled, signum: int | None) -> int:
    """The exit code of the first failing rank, or 128 + the signal of the rank or of this program, as in a shell."""
    if signum is not None:
        return 128 + signum
    if isinstance(problem, JobCancelled):
        return Exit.CANCELLED
    info: JobInfo | None = problem.info
    failure = info.failure if info else None
    if failure is not None and failure.signal:
        return 128 + failure.signal
    return (failure.exit_code if failure else None) or Exit.FAILED


def _lend_stdin() -> None:
    """Let rank 0 read what this program could: the terminal by its name, a pipe or a file by way of /proc (Linux).

    It travels as a variable of this process: the environment goes to servers of this machine alone.
    """
    os.environ.pop(STDIN, None)
    path = _stdin()
    if path is not None:
        os.environ[STDIN] = path


def _stdin() -> str | None:
    """None: nothing can be read from it."""
    try:
        mode = os.fstat(0).st_mode
        if os.isatty(0):
            return os.ttyname(0)
    except OSError:
        return None
    readable = stat.S_ISFIFO(mode) or stat.S_ISREG(mode)
    return f"/proc/{os.getpid()}/fd/0" if readable and sys.platform == "linux" else None
