"""`client-lib drill`."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn

import typer
from typer import Option

from client_lib.cli import printer, submit_steps
from client_lib.cli.connection import Connection
from client_lib.cli.job_options import ConfigOption, job_command
from client_lib.cli.parameters import CommandApp, TableOrJson
from client_lib.cli.program import ExitCode

_ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]

app = CommandApp()


@job_command(
    app,
    examples="""
  client-lib drill -N 2 train.py --epochs 3
  client-lib drill --quick train.py                   three faults
  client-lib drill train.py -o json | jq -r '.faults[] | [.fault, .verdict] | @tsv'

\b
Exit code:
  0 the script resumes after each fault; 1 a fault of the script was found;
  5 an undisturbed run fails, or the script saves outside of its working directory
""",
)
def drill(
    ctx: typer.Context,
    connection: Connection,
    config: ConfigOption = None,
    quick: Annotated[
        bool,
        Option("--quick", help="Three faults: all ranks killed, SIGTERM, a damaged checkpoint."),
    ] = False,
    output: TableOrJson = "table",
    **values: Any,
) -> int:
    """Prove that SCRIPT resumes: run it undisturbed twice, then with faults, and compare.

    Each run is a job of this machine with a copy of the code, and folders of its own: nothing of
    yours is written to. After a fault a second run resumes. Its metrics, its last checkpoint and
    what each step of the optimizer begins with are compared with the undisturbed run.
    """
    from client_lib.drill import FAULTS, QUICK, rehearse, report

    described = submit_steps.job_of(ctx, connection, config, values)
    with _unwinding(), printer.progress("drill") as show:
        found = rehearse(
            connection.api,
            described.job.spec,
            described.python,
            QUICK if quick else FAULTS,
            lambda step: show(f"drill: {step}"),
        )
    if output == "json":
        printer.data_json(report.as_data(found))
    else:
        printer.lines(report.outside(found))
        printer.table(report.COLUMNS, report.rows(found), whole=True)
        printer.lines(report.sentences(found))
        printer.data(report.verdict(found))
        if found.folder:
            printer.hint(f"the runs with a fault are kept: their jobs, and {found.folder}")
    return ExitCode.DONE if found.resumes else ExitCode.FAILED


@contextmanager
def _unwinding() -> Iterator[None]:
    """SIGTERM and a closed terminal are exceptions in the block, as Ctrl-C is: the run is
    cancelled, and the folders are removed. Later ones are ignored, so that they can't break that
    off."""
    # nohup makes a program ignore SIGHUP
    taken = [signum for signum in _ENDING if signal.getsignal(signum) is not signal.SIG_IGN]
    before = {signum: signal.signal(signum, _unwind) for signum in taken}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _unwind(signum: int, _: object) -> NoReturn:
    for each in _ENDING:
        signal.signal(each, signal.SIG_IGN)
    raise SystemExit(128 + signum)
