"""`client-lib serve`."""

from __future__ import annotations

import click

from client_lib.cli import server_process


@click.command(
    "serve",
    context_settings={"ignore_unknown_options": True},
    add_help_option=False,  # `serve --help` is answered by the server, which knows its own flags
)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def command(args: tuple[str, ...]) -> int:
    """Run a server in the foreground, with the flags of `python -m server_stub`; `serve --help` shows them."""
    return server_process.become(args)
