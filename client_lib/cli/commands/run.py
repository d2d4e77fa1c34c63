"""`client-lib run` and `%%job`: a job in the foreground, and the cell of a notebook as a job.

Ctrl-C at `submit -f` stops following. Here Ctrl-C, a closed terminal and SIGTERM cancel the job,
and its output is shown to the end: Ctrl-C by SIGINT for the script, the others by SIGTERM.
"""

import importlib
import os
import shlex
import signal
import stat
import sys
import threading
from pathlib import Path
from typing import Any

import typer
from typer.main import get_command

from client_lib.cli import printer, submit_steps
from client_lib.cli.connection import Connection
from client_lib.cli.job_options import ConfigOption, job_command
from client_lib.cli.parameters import CommandApp
from client_lib.cli.program import ExitCode
from client_lib.cli.submit_steps import NoCheck
from client_lib.errors import ClientLibError, JobCancelled, JobFailed
from client_lib.job import Job
from client_lib.launcher_protocol.plan import STDIN

FILE = "cell.py"
_ENDING = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]

app = CommandApp()
magic = CommandApp()


@job_command(
    app,
    examples="""
  client-lib run train.py --epochs 3
  client-lib run --processes-per-worker 4 train.py    as torchrun --nproc-per-node 4 train.py
  client-lib run torchrun --nproc-per-node 4 train.py

\b
Exit code:
  0 SUCCEEDED; else that of the first failing rank, 128 + N where signal N ended it;
  3 cancelled by another; 130 after Ctrl-C
""",
)
def run(
    ctx: typer.Context,
    connection: Connection,
    config: ConfigOption = None,
    no_check: NoCheck = False,
    **values: Any,
) -> int:
    """Run SCRIPT in the foreground, as torchrun would.

    The output is shown as it comes. On this machine rank 0 reads this terminal (breakpoint() works
    if the job has one process). Ctrl-C cancels the job: SCRIPT gets SIGINT, and may save within its
    grace period. A second Ctrl-C sends SIGTERM to SCRIPT and ends this command. The job's record
    and logs stay.
    """
    described = submit_steps.job_of(ctx, connection, config, values)
    os.environ.pop(STDIN, None)
    # it travels as a variable: the environment goes to servers of this machine alone
    if path := _stdin():
        os.environ[STDIN] = path
    job = described.job
    ending = _Ending(job)
    ending.begin()
    try:
        name = submit_steps.submit(described, not no_check).name
        if ending.signals:  # before there was a job to cancel
            _cancel(job, ending.interrupts)
        printer.hint(f'Job "{name}" created.')
        printer.count_submit()
        job.wait(follow=True)
    except (JobFailed, JobCancelled) as problem:
        printer.error(problem)
        return _exit_code(problem, ending.signals)
    except BaseException:
        _cancel(job)  # the reader of our output is gone, the server is, or Ctrl-C came twice
        raise
    finally:
        ending.restore()
    return ExitCode.DONE


class _Ending:
    """The signals that would have ended this program. The first one cancels the job: Ctrl-C is
    SIGINT for its script, the others are SIGTERM. A second one ends this program, with a SIGTERM
    for the script; a second SIGHUP does nothing, because the kernel and the shell both send one
    when a terminal is closed."""

    def __init__(self, job: Job) -> None:
        self.signals: list[int] = []
        """Those that came."""
        self._job = job
        self._before: dict[int, Any] = {}

    def begin(self) -> None:
        for signum in _ENDING:
            # nohup and a shell's `&` make a program ignore it
            if signal.getsignal(signum) is not signal.SIG_IGN:
                self._before[signum] = signal.signal(signum, self._on_signal)

    def restore(self) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    @property
    def interrupts(self) -> bool:
        """True if the first signal was Ctrl-C."""
        return self.signals[:1] == [signal.SIGINT]

    def _on_signal(self, signum: int, _: object) -> None:
        self.signals.append(signum)
        if len(self.signals) == 1:
            # in a thread: this one may be in the middle of a call to the same server
            threading.Thread(
                target=_cancel, args=(self._job, self.interrupts), name="client_lib-cancel"
            ).start()
        elif signum == signal.SIGINT:
            raise KeyboardInterrupt
        elif signum == signal.SIGTERM:
            raise SystemExit(128 + signum)


def _cancel(job: Job, interrupt: bool = False) -> None:
    if not job.job_name:
        return
    try:
        job.client.cancel_job(job.job_name, interrupt=interrupt)
    except ClientLibError as problem:
        printer.error(problem)
        printer.hint(f"`client-lib cancel {job.job_name}` stops the job")


def _exit_code(problem: JobFailed | JobCancelled, came: list[int]) -> int:
    """The exit code of the first failing rank, or 128 + the signal of the rank or of
    this program, as in a shell.
    """
    if came:
        return 128 + came[0]
    if isinstance(problem, JobCancelled):
        return ExitCode.CANCELLED
    failure = problem.info.failure if problem.info else None
    if failure is None:
        return ExitCode.FAILED
    return int(128 + failure.signal if failure.signal else failure.exit_code or ExitCode.FAILED)


def _stdin() -> str | None:
    """Standard input of rank 0: the terminal by its name, or the pipe or file of this program by
    way of /proc (Linux). None: nothing can be read."""
    try:
        mode = os.fstat(0).st_mode
        if os.isatty(0):
            return os.ttyname(0)
    except OSError:
        return None
    readable = stat.S_ISFIFO(mode) or stat.S_ISREG(mode)
    return f"/proc/{os.getpid()}/fd/0" if readable and sys.platform == "linux" else None


# --- a cell of a notebook


def load_ipython_extension(shell: Any) -> None:
    """Register `%%job`; IPython calls this for `%load_ext client_lib`."""
    shell.register_magic_function(run_cell, "cell", "job")


@job_command(magic, "%%job")
def _job_of_cell(ctx: typer.Context, connection: Connection, **values: Any) -> Job:
    """Save the cell as SCRIPT (default: cell.py), run it as a job and print its
    lines until it has ended.
    """
    script = Path(values["script"] or FILE)
    if script.suffix != ".py":
        ctx.fail(f"%%job saves the cell as SCRIPT, and {script} does not end in .py")
    job, _ = submit_steps.job_of(ctx, connection, None, {**values, "script": str(script)})
    script.write_text(ctx.obj, "utf-8")
    job.submit()
    job.wait(follow=True)
    return job


def run_cell(line: str, cell: str) -> Job | None:
    """Run a cell; None: only the help was asked for. Raises JobFailed and JobCancelled, the errors
    of `Job.submit`, and IPython's UsageError for wrong options."""
    try:
        try:
            words = shlex.split(line)
        except ValueError as wrong:
            raise typer.BadParameter(f"{line!r} can't be read: {wrong}") from None
        done = get_command(magic).main(words, prog_name="%%job", standalone_mode=False, obj=cell)
    except typer.TyperException as wrong:
        ipython = importlib.import_module("IPython.core.error")  # only a notebook has it
        raise ipython.UsageError(wrong.format_message()) from None
    finally:
        printer.end_notices()
    return done if isinstance(done, Job) else None
