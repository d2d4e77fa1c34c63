"""`client-lib completion`, and the answers to a shell that completes a line."""

from __future__ import annotations

import io
import os
import shlex
import sys
from contextlib import redirect_stdout
from typing import Annotated, Any, Literal

import typer
from typer.completion import completion_init, get_completion_script, shell_complete  # type: ignore[attr-defined]  # typer re-exports two of them without naming them so

from client_lib.cli import COMPLETION_VARIABLE, PROGRAM, printer
from client_lib.cli.parameters import CommandApp

SHELLS = ("bash", "zsh", "fish")

app = CommandApp()


@app.command(
    epilog="""\b
Examples:
  client-lib completion bash >> ~/.bashrc
  client-lib completion zsh >> ~/.zshrc
  client-lib completion fish > ~/.config/fish/completions/client-lib.fish
"""
)
def completion(
    ctx: typer.Context,
    shell: Annotated[
        Literal["bash", "zsh", "fish"] | None,
        typer.Argument(metavar="[bash|zsh|fish]", help="Default: that of $SHELL."),
    ] = None,
) -> None:
    """Print the lines that make a shell complete commands, options and names of jobs."""
    wanted = shell or os.path.basename(os.environ.get("SHELL", ""))
    if wanted not in SHELLS:
        ctx.fail(f"which shell? One of {', '.join(SHELLS)}")
    printer.data(get_completion_script(prog_name=PROGRAM, complete_var=COMPLETION_VARIABLE, shell=wanted))
    if sys.stdout.isatty():
        printer.hint(f"append this to your shell's start-up file: {PROGRAM} completion {wanted} >> ...")


def answer(command: Any, instruction: str) -> int:
    """Print what a shell may put in the place of the word that is typed; return the exit code."""
    completion_init()
    shell, _, action = instruction.partition("_")
    if action != "complete":
        return int(shell_complete(command, {}, PROGRAM, COMPLETION_VARIABLE, instruction))
    # lines that client-lib 0.1 made by click (`bash_complete`, where typer has `complete_bash`) stand in the start-up
    # files of users
    if shell == "fish":  # its COMP_CWORD is the word itself
        line, word = os.environ["COMP_WORDS"], os.environ["COMP_CWORD"]
        os.environ["COMP_CWORD"] = str(len(shlex.split(line)) - (1 if word else 0))
    with redirect_stdout(io.StringIO()) as printed:
        code = int(shell_complete(command, {}, PROGRAM, COMPLETION_VARIABLE, "complete_bash"))
    for value in printed.getvalue().split():
        printer.data(f"plain\n{value}\n_" if shell == "zsh" else f"plain,{value}")
    return code
