"""The group of all commands, and the one `try` around them.

`client-lib --help` loads none of the commands, and a command loads its own module alone: start-up is most of what a
user waits for (benchmarks/command_line.py). Click and not typer: typer 0.29 loads pydantic for the first parameter of
any type, 160 ms where click takes 5.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

import click

from client_lib.cli import exits, printer
from client_lib.cli.program import COMPLETION_VARIABLE, PROGRAM
from client_lib.errors import ClientLibError

COMMANDS: dict[str, tuple[str, str]] = {
    # name: (module under commands/, what `client-lib --help` says)
    "submit": ("submit", "Run a script as a job."),
    "run": ("run", "Run a script in the foreground, as torchrun would."),
    "list": ("list_jobs", "Your jobs, newest first."),
    "status": ("status", "Where a job is, and why."),
    "explain": ("explain", "Why a job waits, or why it failed."),
    "logs": ("logs", "What the ranks of a job print."),
    "download": ("download", "Fetch the files that a job has written."),
    "wait": ("wait", "Wait until jobs have ended."),
    "cancel": ("cancel", "Stop jobs; what they logged stays."),
    "delete": ("delete", "Remove jobs and their logs."),
    "resubmit": ("resubmit", "Run a job again, the same code."),
    "render": ("render", "What a submit would create, without creating it."),
    "instances": ("instances", "The instance types of the server."),
    "doctor": ("doctor", "Check the server, and this machine as its client."),
    "serve": ("serve", "Run a server in the foreground."),
    "server": ("server", "The local server: status, stop, token."),
    "config": ("config", "Profiles: which server, which token."),
    "mls-config": ("mls_config", "Point ML Space's own command line at this server."),
    "completion": ("completion", "Completion for bash, zsh or fish."),
}

EPILOG = """\b
Examples:
  client-lib submit -f train.py --epochs 3       run it here, follow its logs
  client-lib submit -N 2 -i a100.8gpu train.py   two workers of 8 GPUs
  client-lib list --state RUNNING
  client-lib logs -f train-x7k2m
"""


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"client_lib.cli.commands.{COMMANDS[cmd_name][0]}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            raise click.UsageError(f"there is no command {args[0]!r}{_nearest(args[0])}", ctx)
        return super().resolve_command(ctx, args)


def _nearest(wrong: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(wrong, COMMANDS, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from client_lib import __version__

        printer.data(f"{PROGRAM} {__version__}")
        ctx.exit()


@click.group(
    cls=LazyGroup, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Show the version."
)
def group() -> None:
    """Run distributed PyTorch scripts as jobs: on this machine, or on a cluster through the same call.

    With nothing configured a small local server is started on demand. `client-lib COMMAND --help` says more.
    """


def run(args: list[str] | None = None) -> int:
    """Run one command line; the exit code. The one place where errors become text and codes."""
    printer.prepare_streams()
    try:
        code = _outcome(sys.argv[1:] if args is None else args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        printer.abandon_stdout()
        return exits.BROKEN_PIPE


def _outcome(args: list[str]) -> int:
    try:
        return _dispatch(args)
    except click.exceptions.Exit as done:  # --help, --version
        return done.exit_code
    except click.exceptions.NoArgsIsHelpError as nothing:
        printer.hint(nothing.format_message())
        return exits.USAGE
    except click.UsageError as wrong:
        printer.hint(_usage(wrong))
        return exits.USAGE
    except ClientLibError as problem:
        printer.error(problem)
        return exits.of_error(problem)
    except (KeyboardInterrupt, click.Abort):
        return exits.INTERRUPTED


def _dispatch(args: list[str]) -> int:
    """Not click's own main(): that one ends the process with 1 when the reader of a pipe is gone."""
    question = os.environ.get(COMPLETION_VARIABLE)
    if question:
        from click.shell_completion import shell_complete

        return shell_complete(group, {}, PROGRAM, COMPLETION_VARIABLE, question)
    with group.make_context(PROGRAM, args) as ctx:
        result = group.invoke(ctx)
    return result if isinstance(result, int) else exits.DONE


def _usage(wrong: click.UsageError) -> str:
    where = wrong.ctx.command_path if wrong.ctx else PROGRAM
    return f"Error: {wrong.format_message()}\n`{where} --help` shows what it takes"
