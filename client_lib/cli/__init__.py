"""The command line `client-lib`: arguments to calls of the SDK, answers to text. No rule about jobs
lives here.

app          the group of commands: its table names the module of each, which is loaded when the
             command runs
commands/    the commands, those of one subject in one module
parameters   options and arguments that several commands share
job_options  the options of a job, made from its spec
submit_steps what submit, render and run share: `-c job.yaml`, `submit torchrun ...`, the
             interpreter
connection   the server of a command: reads as plain dicts, all other calls by the SDK
completion   names that a shell is offered
printer      the one place that prints; on a terminal it draws by `drawing` and
             `transfer_bar`
program      its name and its exit codes
"""

import gc


def main() -> int:
    """Run the command in `sys.argv`; return its exit code."""
    # Imports free hardly anything, and collections would take 4 % of a submit.
    gc.set_threshold(100_000, 10, 10)
    try:
        from client_lib.cli.app import run

        code = run()
    except KeyboardInterrupt:  # before a command ran
        from client_lib.cli.program import ExitCode

        code = ExitCode.INTERRUPTED
    # The interpreter would search all objects for garbage when it ends: 6 % of a submit.
    gc.freeze()
    return code
