"""Parameters that many commands share: which server, what form of output, names of jobs (with their completion)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from client_lib.cli import quick_read
from client_lib.cli.connection import Connection
from client_lib.errors import ClientLibError

Command = Callable[..., Any]
F = TypeVar("F", bound=Command)

JSON, NAME, TABLE = "json", "name", "table"
COMPLETED = 50  # names that a shell is offered
COMPLETION_S = 1.0  # a shell waits for us while somebody types


def connected(command: Command) -> Command:
    """--endpoint and --profile; the command gets the `connection` that they mean."""

    @click.option(
        "--endpoint", metavar="URL", help="The server, or `local`. Default: the profile's, else this machine's."
    )
    @click.option("--profile", metavar="NAME", help="A profile of the configuration file (`client-lib config show`).")
    @functools.wraps(command)
    def with_connection(*args: Any, endpoint: str | None, profile: str | None, **kwargs: Any) -> Any:
        return command(*args, connection=Connection(endpoint, profile), **kwargs)

    return with_connection


def output(*forms: str) -> Callable[[F], F]:
    """-o; the first form is what is shown without it."""
    return click.option(
        "-o", "--output", type=click.Choice(forms), default=forms[0], show_default=True, help="Form of what is printed."
    )


def collapse(condition: str = "") -> Callable[[F], F]:
    """--collapse; `condition` is what stands in front of its help."""
    return click.option(
        "--collapse", is_flag=True, help=f"{condition}Lines that several ranks print alike are one: [0-3] loading."
    )


def _job_names(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names that begin so. Never starts a server, never says a word: it would stand in the middle of the line."""
    connection = Connection(ctx.params.get("endpoint"), ctx.params.get("profile"))
    try:
        query = [("name", incomplete)] if incomplete else []
        page = connection.read("/api/v1/jobs", [*query, ("limit", str(COMPLETED))], COMPLETION_S)
        return [CompletionItem(job["name"], help=job["state"]) for job in page["jobs"]]
    except (quick_read.NotQuick, ClientLibError, KeyError, TypeError):
        return []


job_name = click.argument("name", metavar="NAME", shell_complete=_job_names)
job_names = click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=_job_names)
