"""The group of all commands, and the one `try` around them.

`client-lib --help` loads no command, and a command loads its own module alone: start-up is most of
what a user waits for (benchmarks/start_up.py). Help is plain text: rich, which typer would draw it
with, takes as long to load as all else together.
"""

import os
import sys
from difflib import get_close_matches
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer import Option
from typer.core import TyperGroup
from typer.main import get_command, get_command_from_info, get_group

from client_lib.cli import printer
from client_lib.cli.parameters import ProfileOption, ServerOption, require_command
from client_lib.cli.program import COMPLETION_VARIABLE, PROGRAM, ExitCode
from client_lib.errors import ClientLibError
from client_lib.version import this_version


class Listed(NamedTuple):
    """A command as `client-lib --help` lists it."""

    module: str
    """Name of the module below commands/."""
    line: str


HEADINGS: dict[str, dict[str, Listed]] = {
    "Start": {
        "submit": Listed("submit", "Run a script as a job."),
        "run": Listed("run", "Run a script in the foreground, as torchrun would."),
        "resubmit": Listed("submit", "Run a job again, the same code."),
        "init": Listed("setup", "Write a first example into a folder."),
    },
    "Watch": {
        "list": Listed("jobs", "List your jobs, newest first."),
        "status": Listed("status", "Show the state of a job, and why."),
        "logs": Listed("logs", "Print what the ranks of a job print."),
        "wait": Listed("jobs", "Wait until jobs have ended."),
        "cancel": Listed("jobs", "Stop jobs; what they logged stays."),
        "download": Listed("results", "Fetch the files that a job has written."),
    },
    "Understand": {
        "explain": Listed("status", "Explain why a job waits, or why it failed."),
        "stacks": Listed("status", "Show what a running job does, rank by rank."),
        "metrics": Listed("results", "Show the losses and other metrics that a job prints."),
        "checkpoints": Listed("results", "List the checkpoints of a job, complete or damaged."),
        "drill": Listed("drill", "Prove that a script resumes after kills and other faults."),
        "render": Listed("submit", "Show what a submit would create."),
        "exec": Listed("sessions", "Run a command in a worker of a running job."),
        "shell": Listed("sessions", "Open a shell in a worker of a running job."),
        "port-forward": Listed("sessions", "Reach a port of a worker of a running job."),
    },
    "Compare": {
        "diff": Listed("results", "Show what differs between two jobs."),
        "compare": Listed("results", "Show jobs beside each other: arguments, metrics."),
        "best": Listed("results", "Rank jobs by a metric."),
        "code": Listed("results", "Fetch the code that a job ran."),
    },
    "Operate": {
        "delete": Listed("jobs", "Remove jobs and their logs."),
        "prune": Listed("jobs", "Remove old jobs that have ended, or early checkpoints."),
        "ui": Listed("server", "Open the server's pages in a browser."),
        "instances": Listed("server", "List the instance types of the server."),
        "doctor": Listed("server", "Check the server, and this machine as its client."),
        "serve": Listed("server", "Run a server in the foreground."),
        "server": Listed("server", "The local server: status, stop, restart, token."),
        "config": Listed("config", "Profiles: which server, which token."),
        "login": Listed("config", "Log in at a server by its OpenID Connect issuer."),
        "logout": Listed("config", "Forget the login at a server."),
        "mls-config": Listed("config", "Point ML Space's own command line at this server."),
        "completion": Listed("setup", "Print completion lines for bash, zsh or fish."),
    },
}
"""The headings of `client-lib --help`, each with its commands; the ten that most users need come
first."""

COMMANDS = {name: each for commands in HEADINGS.values() for name, each in commands.items()}

ALIASES = {"ls": "list", "ps": "list", "stop": "cancel", "kill": "cancel", "rm": "delete"}
"""Words that other tools use; no help shows them."""

_PLUGINS = "PYDANTIC_DISABLE_PLUGINS"


class LazyGroup(TyperGroup):
    """A group that imports a command's module when the command is used."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002  typer's signature
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002  typer's signature
        if cmd_name not in COMMANDS:
            return None
        # pydantic searches every installed distribution for plugins, which takes 15 ms with 190 of
        # them; no job or server inherits the variable
        before = os.environ.get(_PLUGINS)
        os.environ[_PLUGINS] = "__all__"
        try:
            module = import_module(f"client_lib.cli.commands.{COMMANDS[cmd_name].module}")
        finally:
            del os.environ[_PLUGINS]
            if before is not None:
                os.environ[_PLUGINS] = before
        for info in module.app.registered_commands:
            # build only this command of the module
            if cmd_name in (info.name, info.callback.__name__):
                return get_command_from_info(
                    info, pretty_exceptions_short=True, rich_markup_mode=None
                )
        return next(
            get_group(info.typer_instance)
            for info in module.app.registered_groups
            if info.name == cmd_name
        )

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002  typer's signature
        width = max(map(len, COMMANDS))
        for heading, commands in HEADINGS.items():
            with formatter.section(heading):
                rows = [(f"{name:{width}}", each.line) for name, each in commands.items()]
                formatter.write_dl(rows)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, *rest = args
        name = ALIASES.get(name, name)
        # else a shell completes
        if not name.startswith("-") and name not in COMMANDS and not ctx.resilient_parsing:
            near = get_close_matches(name, COMMANDS, n=1)
            ctx.fail(
                f"there is no command {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")
            )
        return super().resolve_command(ctx, [name, *rest])


app = typer.Typer(
    cls=LazyGroup,
    add_completion=False,
    rich_markup_mode=None,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="""\b
Examples:
  client-lib submit -f train.py --epochs 3       run it here, follow its logs
  client-lib submit -N 2 -i a100.8gpu train.py   two workers of 8 GPUs
  client-lib list --state RUNNING
  client-lib logs -f train-x7k2m
""",
)


def _show_version(ctx: typer.Context, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:  # a shell completes the line
        printer.data(f"{PROGRAM} {this_version()}")
        raise typer.Exit


@app.callback()
def group(
    ctx: typer.Context,
    version: Annotated[  # noqa: ARG001  its callback answers, whatever follows
        bool, Option("--version", help="Show the version.", is_eager=True, callback=_show_version)
    ] = False,
    endpoint: ServerOption = None,
    profile: ProfileOption = None,
) -> None:
    """Run distributed PyTorch scripts as jobs: on this machine, or on a cluster through the same
    call.

    With nothing configured a small local server is started on demand. `client-lib COMMAND --help`
    shows the options of a command.
    """
    require_command(ctx)
    # options in front of the command become the defaults of its own
    given = {
        name: value
        for name, value in (("endpoint", endpoint), ("profile", profile))
        if value is not None
    }
    if given:
        command = str(ctx.invoked_subcommand)
        group: Any = ctx.command  # typer types it as a plain command
        known = {parameter.name for parameter in group.get_command(ctx, command).params}
        for name in given.keys() - known:
            ctx.fail(f"{command} takes no --{name}")
        ctx.default_map = {command: given}


def run(args: list[str] | None = None) -> int:
    """Run one command line; return the exit code. The one place where
    errors become text and codes.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        # it was closed; the next file that is opened must not take its place
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
    for stream in (sys.stdout, sys.stderr):
        # text that the terminal's encoding can't hold is escaped
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _outcome(sys.argv[1:] if args is None else args)
        sys.stdout.flush()
        return code
    except OSError as problem:
        # an error of stdout: the interpreter's last flush must not fail
        if problem.filename is None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(problem, BrokenPipeError):
            return ExitCode.BROKEN_PIPE
        is_cwd = isinstance(problem, FileNotFoundError) and problem.filename is None
        printer.hint(
            "Error: the current folder was removed\nchange to another"
            if is_cwd
            else f"Error: {problem}"
        )
        return ExitCode.FAILED
    finally:
        printer.end_notices()


def _outcome(args: list[str]) -> int:
    """Run the command without typer's own main(), which ends the process with 1 when the
    reader of a pipe is gone.
    """
    command: Any = get_command(app)
    if instruction := os.environ.get(COMPLETION_VARIABLE):
        from client_lib.cli.commands.setup import answer

        return answer(command, instruction)
    try:
        with command.make_context(PROGRAM, args) as ctx:
            result = command.invoke(ctx)
        return result if isinstance(result, int) else ExitCode.DONE
    except typer.Exit as done:  # --help, --version
        return done.exit_code
    except typer.TyperException as wrong:
        ctx = getattr(wrong, "ctx", None)
        where = ctx.command_path if ctx else PROGRAM
        printer.hint(f"Error: {wrong.format_message()}\n`{where} --help` lists the options")
        return ExitCode.USAGE
    except ClientLibError as problem:
        printer.error(problem)
        return ExitCode.of_error(problem)
    except (KeyboardInterrupt, typer.Abort):
        return ExitCode.INTERRUPTED
