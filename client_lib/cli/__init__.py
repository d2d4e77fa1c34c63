"""The command line `client-lib`: words to calls of the SDK, answers to text. No rule about jobs lives here.

    app        the group of commands; each command's module is loaded when it runs
    commands/  a module per command
    job_spec   the options of a job spec, made from the spec itself;  job_file  `-c job.yaml`
    connection the server: asked by quick_read (http.client, plain dicts) where that is possible, else through the SDK
    show       what a job looks like as text (pure)
    printer    the one place that prints;  exits  the one table of exit codes

Nobody imports this package but `__main__` and the entry point.
"""

from __future__ import annotations


def main() -> int:
    """Run the command in `sys.argv`; the exit code (see `exits`)."""
    from client_lib.cli.app import run

    return run()
