"""Parameters that many commands share: which server, form of output, names of
jobs (with their completion).
"""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, Literal, TypeVar

import typer
from typer import Argument, Option
from typer.core import TyperCommand

from client_lib.cli import printer
from client_lib.cli.program import ExitCode

F = TypeVar("F", bound=Callable[..., Any])


class Command(TyperCommand):
    """A command whose help is plain text, its options under the headings that they
    name as `rich_help_panel`.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except (
            typer.TyperException
        ) as wrong:  # typer knows no command for an option that lacks its value
            if getattr(wrong, "ctx", ctx) is None:
                ctx.fail(wrong.format_message())
            raise

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        # NAME, where typer writes {NAME}
        return [piece.strip("{}") for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record:
                default = "Arguments" if parameter.param_type_name == "argument" else "Options"
                heading = getattr(parameter, "rich_help_panel", None) or default
                sections.setdefault(heading, []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)


class CommandApp(typer.Typer):
    """The typer application of one module of commands."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(add_completion=False, rich_markup_mode=None, **settings)

    def command(
        self, name: str | None = None, *, examples: str = "", **settings: Any
    ) -> Callable[[F], F]:
        """Without `name` the command is called as its function is. A parameter `connection` of the
        function becomes the options --endpoint and --profile. `examples`: lines below the help."""
        epilog = f"\b\nExamples:{examples}" if examples else None
        register = super().command(name, **{"cls": Command, "epilog": epilog, **settings})
        return lambda command: register(_connected(command))


def require_command(ctx: typer.Context) -> None:
    """Show the help of a group that was called without a command: wrong usage."""
    if ctx.invoked_subcommand is None:
        printer.hint(ctx.get_help())
        raise typer.Exit(ExitCode.USAGE)


def profile_names(incomplete: str) -> list[str]:
    """Names of profiles that begin with `incomplete`, for a shell."""
    from client_lib.cli import completion

    return completion.profiles(incomplete)


ServerOption = Annotated[
    str | None,
    Option(
        metavar="URL", help="The server, or `local`. Default: the profile's, else this machine's."
    ),
]
ProfileOption = Annotated[
    str | None,
    Option(
        metavar="NAME",
        autocompletion=profile_names,
        help="A profile of the configuration file (`client-lib config show`).",
    ),
]


def _connected(command: F) -> F:
    """The command with options for the server in the place of its parameter
    `connection`, if it has one.
    """
    signature = inspect.signature(command, eval_str=True)
    own = [
        parameter for parameter in signature.parameters.values() if parameter.name != "connection"
    ]
    if len(own) == len(signature.parameters):
        return command

    @wraps(command)
    def connect(*, endpoint: str | None, profile: str | None, **values: Any) -> Any:
        from client_lib.cli.connection import Connection

        return command(connection=Connection(endpoint, profile), **values)

    keyword = inspect.Parameter.KEYWORD_ONLY
    ours = [
        inspect.Parameter(name, keyword, default=None, annotation=annotation)
        for name, annotation in (("endpoint", ServerOption), ("profile", ProfileOption))
    ]
    connect.__signature__ = signature.replace(parameters=[*own, *ours])  # type: ignore[attr-defined]  # typer reads it
    return connect  # type: ignore[return-value]


_OUTPUT = Option("-o", "--output", help="Format of the output.")
TextOrJson = Annotated[Literal["text", "json"], _OUTPUT]
TextJsonOrRaw = Annotated[Literal["text", "json", "raw"], _OUTPUT]
TextJsonOrName = Annotated[Literal["text", "json", "name"], _OUTPUT]
TableOrJson = Annotated[Literal["table", "json"], _OUTPUT]
TableJsonOrCsv = Annotated[Literal["table", "json", "csv"], _OUTPUT]
TableJsonOrName = Annotated[Literal["table", "json", "name"], _OUTPUT]
YamlOrJson = Annotated[Literal["yaml", "json"], _OUTPUT]

_COLLAPSE = "Print identical lines of several ranks once: [0-3] loading."
Collapse = Annotated[bool, Option("--collapse", help=_COLLAPSE)]
CollapseFollowed = Annotated[bool, Option("--collapse", help=f"With -f: {_COLLAPSE}")]
Follow = Annotated[
    bool,
    Option("-f", "--follow", help="Print its logs until it has ended; the exit code is the job's."),
]


def _offering(*kinds: str) -> Callable[[typer.Context, str], list[tuple[str, str]]]:
    def offered(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
        """Names of `jobs` or `groups` that begin with `incomplete`, for a shell."""
        from client_lib.cli import completion

        return [pair for kind in kinds for pair in completion.names(kind, incomplete, ctx.params)]

    return offered


def _names(metavar: str, text: str, *kinds: str) -> Any:
    return Argument(metavar=metavar, autocompletion=_offering(*kinds), help=text)


_BEGINNING = "Name of the job, or a beginning that no other has."
_NEWEST = f"{_BEGINNING} Default: the newest job."
_SEVERAL = "Names of the jobs, or beginnings that no other has. Default: the newest job."
_WHOLE_NEWEST = "Names of the jobs, in full. Default: the newest job, after a question."
JobName = Annotated[str, _names("NAME", _BEGINNING, "jobs")]
JobOrGroup = Annotated[str, _names("NAME", _BEGINNING, "groups", "jobs")]
JobOrNewest = Annotated[str | None, _names("[NAME]", _NEWEST, "jobs")]
JobGroupOrNewest = Annotated[str | None, _names("[NAME]", _NEWEST, "groups", "jobs")]
GroupOrAll = Annotated[str | None, _names("[GROUP]", "Show the members of this group.", "groups")]
JobOrAll = Annotated[str | None, _names("[NAME]", f"{_BEGINNING} Default: all jobs.", "jobs")]
WholeNames = Annotated[
    list[str], _names("NAME...", "Names of the jobs, in full.", "groups", "jobs")
]
WholeNamesOrNewest = Annotated[
    list[str] | None, _names("[NAME]...", _WHOLE_NEWEST, "groups", "jobs")
]
NamesOrNewest = Annotated[list[str] | None, _names("[NAME]...", _SEVERAL, "groups", "jobs")]


def key_value(text: str) -> tuple[str, str | None]:
    """`team=vision` -> ("team", "vision"). Only the form is checked."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise typer.BadParameter(f"{text!r} is not of the form KEY=VALUE")
    return key, value
