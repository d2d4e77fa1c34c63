"""`client-lib serve`."""

from __future__ import annotations

from typing import Annotated

import typer

from client_lib.cli import processes
from client_lib.cli.parameters import CommandApp

app = CommandApp()


@app.command(
    context_settings={"ignore_unknown_options": True},
    add_help_option=False,  # `serve --help` is answered by the server, which knows its own flags
)
def serve(
    args: Annotated[list[str] | None, typer.Argument(metavar="[ARGS]...", help="Flags of the server.")] = None,
) -> int:
    """Run a server in the foreground, for this machine's user or for several; `serve --help` shows its options."""
    return processes.replace_by_server("client-lib serve", args or ())
