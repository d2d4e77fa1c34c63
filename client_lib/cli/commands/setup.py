"""`client-lib init` and `client-lib completion`, and the answers to a
shell that completes a line.
"""

import io
import os
import shlex
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer import Argument
from typer.completion import completion_init, get_completion_script, shell_complete  # type: ignore[attr-defined]  # typer re-exports two of them without naming them so

from client_lib.cli import printer
from client_lib.cli.parameters import CommandApp
from client_lib.cli.program import COMPLETION_VARIABLE, PROGRAM
from client_lib.errors import InvalidRequest

TRAIN = """\
import torch
import torch.distributed as dist

dist.init_process_group("gloo")  # "nccl" on GPUs
torch.manual_seed(dist.get_rank())  # each rank draws data of its own
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1, 101):
    x = torch.randn(64, 1)
    loss = torch.nn.functional.mse_loss(model(x), 3 * x + 1)
    optimizer.zero_grad()
    loss.backward()  # averages the gradients of all ranks
    optimizer.step()
    if step % 20 == 0 and dist.get_rank() == 0:
        print(f"step {step}/100 loss={loss.item():.4f}")
dist.destroy_process_group()
"""
JOB = """\
script: train.py
n_workers: 2
instance_type: cpu.1C.2G
"""
FILES = {"train.py": TRAIN, "job.yaml": JOB}

app = CommandApp()


@app.command(
    examples="""
  client-lib init && client-lib submit -f -c job.yaml
  client-lib init first-job
"""
)
def init(
    folder: Annotated[
        Path,
        Argument(
            metavar="[FOLDER]", help="A folder, made if it is missing. Default: the current one."
        ),
    ] = Path(),
) -> None:
    """Write a first example into a folder: a train.py for several workers, and its job.yaml.

    The example needs PyTorch alone. Files that exist are never overwritten.
    """
    present = [str(folder / name) for name in FILES if (folder / name).exists()]
    if present:
        raise InvalidRequest(
            f"{' and '.join(present)} would be overwritten",
            hint="give another folder: client-lib init FOLDER",
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in FILES.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidRequest(f"can't write to {folder}: {error.strerror}") from error
    printer.data("\n".join(str(folder / name) for name in FILES))
    printer.hint(f"run it: client-lib submit -f -c {shlex.quote(str(folder / 'job.yaml'))}")


@app.command(
    examples="""
  client-lib completion bash >> ~/.bashrc
  client-lib completion zsh >> ~/.zshrc
  client-lib completion fish > ~/.config/fish/completions/client-lib.fish
"""
)
def completion(
    ctx: typer.Context,
    shell: Annotated[
        Literal["bash", "zsh", "fish"] | None,
        Argument(metavar="[bash|zsh|fish]", help="Default: that of $SHELL."),
    ] = None,
) -> None:
    """Print the lines that make a shell complete commands, options and names of jobs."""
    wanted = shell or os.path.basename(os.environ.get("SHELL", ""))
    if wanted not in ("bash", "zsh", "fish"):
        ctx.fail("which shell? One of bash, zsh, fish")
    printer.data(
        get_completion_script(prog_name=PROGRAM, complete_var=COMPLETION_VARIABLE, shell=wanted)
    )
    if sys.stdout.isatty():
        printer.hint(
            f"append this to your shell's start-up file: {PROGRAM} completion {wanted} >> ..."
        )


def answer(command: Any, instruction: str) -> int:
    """Print what a shell may put in the place of the word that is typed; return the exit code."""
    completion_init()
    shell, _, action = instruction.partition("_")
    if action != "complete":
        return int(shell_complete(command, {}, PROGRAM, COMPLETION_VARIABLE, instruction))
    # lines that client-lib 0.1 made by click (`bash_complete`, where typer has `complete_bash`)
    # stand in the start-up files of users
    if shell == "fish":  # its COMP_CWORD is the word itself
        line = os.environ["COMP_WORDS"]
        word = os.environ["COMP_CWORD"]
        os.environ["COMP_CWORD"] = str(len(shlex.split(line)) - (1 if word else 0))
    with redirect_stdout(io.StringIO()) as printed:
        code = int(shell_complete(command, {}, PROGRAM, COMPLETION_VARIABLE, "complete_bash"))
    for value in printed.getvalue().split():
        printer.data(f"plain\n{value}\n_" if shell == "zsh" else f"plain,{value}")
    return code
