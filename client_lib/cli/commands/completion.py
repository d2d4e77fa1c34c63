"""`client-lib completion`."""

from __future__ import annotations

import os
import sys

import click

from client_lib.cli import printer
from client_lib.cli.program import COMPLETION_VARIABLE, PROGRAM

SHELLS = ("bash", "zsh", "fish")


@click.command(
    "completion",
    epilog="""\b
Examples:
  client-lib completion bash >> ~/.bashrc
  client-lib completion zsh >> ~/.zshrc
  client-lib completion fish > ~/.config/fish/completions/client-lib.fish
""",
)
@click.argument("shell", type=click.Choice(SHELLS), required=False)
@click.pass_context
def command(ctx: click.Context, shell: str | None) -> None:
    """The lines that make a shell complete commands, options and names of jobs.

    Without SHELL: for the one of $SHELL.
    """
    from click.shell_completion import get_completion_class

    wanted = shell or os.path.basename(os.environ.get("SHELL", ""))
    completion = get_completion_class(wanted) if wanted in SHELLS else None
    if completion is None:
        raise click.UsageError(f"which shell? One of {', '.join(SHELLS)}", ctx)
    printer.data(completion(ctx.find_root().command, {}, PROGRAM, COMPLETION_VARIABLE).source())
    if sys.stdout.isatty():
        printer.hint(f"append this to your shell's start-up file: {PROGRAM} completion {wanted} >> ...")
