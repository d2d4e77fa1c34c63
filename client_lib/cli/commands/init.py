"""`client-lib init`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from client_lib.cli import printer
from client_lib.cli.parameters import CommandApp
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
    epilog="""\b
Examples:
  client-lib init && client-lib submit -f -c job.yaml
  client-lib init first-job
"""
)
def init(
    folder: Annotated[
        Path, typer.Argument(metavar="[FOLDER]", help="Made if it is missing. Default: this one.")
    ] = Path(),
) -> None:
    """Write a first example into a folder: a train.py for several workers, and its job.yaml.

    It needs PyTorch alone. A file of that name is never overwritten.
    """
    present = [str(folder / name) for name in FILES if (folder / name).exists()]
    if present:
        raise InvalidRequest(
            f"{' and '.join(present)} would be overwritten", hint="give another folder: client-lib init FOLDER"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in FILES.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidRequest(f"can't write to {folder}: {error.strerror}") from error
    printer.data("\n".join(str(folder / name) for name in FILES))
    printer.hint(f"run it: client-lib submit -f -c {shlex.quote(str(folder / 'job.yaml'))}")
