"""The command line `client-lib`: arguments to calls of the SDK, answers to text. No rule about jobs lives here.

app          the group of commands: its table names the module of each, which is loaded when the command runs
commands/    the commands, those of one subject in one module
parameters   options and arguments that several commands share;  job_options  the options of a job, made from its spec
submit_steps what submit, render and run share: `-c job.yaml`, `submit torchrun ...`, the interpreter
connection   the server of a command: reads as plain dicts, all other calls by the SDK;  http_client  HTTP for both
cell_magic   `%%job` in a notebook
report       the report of a failed job, for a terminal or a pipe
printer      the one place that prints;  exits  the one table of exit codes
"""

from __future__ import annotations

PROGRAM = "client-lib"
COMPLETION_VARIABLE = "_CLIENT_LIB_COMPLETE"
"""Set by the lines of `client-lib completion`; the variable is named as click and typer name it."""


def main() -> int:
    """Run the command in `sys.argv`; return the exit code (see `exits`)."""
    import gc

    gc.set_threshold(100_000, 10, 10)  # imports free hardly anything, and collections would take 4 % of a submit
    from client_lib.cli.app import run

    code = run()
    gc.freeze()  # the interpreter would search all objects for garbage when it ends: 6 % of a submit
    return code
