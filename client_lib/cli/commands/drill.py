"""`client-lib drill`."""

from typing import Annotated, Any

import typer
from typer import Option

from client_lib.cli import printer, submit_steps
from client_lib.cli.connection import Connection
from client_lib.cli.job_options import ConfigOption, job_command
from client_lib.cli.parameters import CommandApp, TableOrJson
from client_lib.cli.program import ExitCode

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
    with printer.progress("drill") as show:
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
