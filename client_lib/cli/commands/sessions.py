"""`client-lib exec`, `client-lib shell` and `client-lib port-forward`: inside the workers of a running job."""

from __future__ import annotations

import socket
from typing import Annotated

import typer

from client_lib.cli import printer
from client_lib.cli.connection import Connection
from client_lib.cli.parameters import CommandApp, JobName, JobOrNewest
from client_lib.cli.session import attach, check_port, forward
from client_lib.errors import Conflict

app = CommandApp()

_Rank = Annotated[int | None, typer.Option(min=0, help="Run on the worker of this rank, with its environment.")]
_Worker = Annotated[int | None, typer.Option(min=0, help="Number of the worker. Default: 0.")]


@app.command(
    "exec",
    epilog="""\b
Examples:
  client-lib exec train-x7k2m -- nvidia-smi
  client-lib exec train-x7k2m --rank 3 -- sh -c 'ls -l $CLIENT_LIB_CHECKPOINT_DIR'
  client-lib exec train-x7k2m -- tar c outputs | tar x
""",
)
def exec_(
    connection: Connection,
    name: JobName,
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="The command and its arguments.")],
    rank: _Rank = None,
    worker: _Worker = None,
) -> int:
    """Run a command in a worker of a running job, in the working directory of its ranks.

    The exit code is that of the command. The command gets a terminal if stdin and stdout are one, and ends with the
    attempt.
    """
    return attach(connection.rest, connection.job(name)["name"], {"argv": command, "rank": rank, "worker": worker})


@app.command(
    epilog="""\b
Examples:
  client-lib shell train-x7k2m
  client-lib shell train-x7k2m --worker 1
"""
)
def shell(connection: Connection, name: JobOrNewest = None, rank: _Rank = None, worker: _Worker = None) -> int:
    """Open a shell in a worker of a running job, in the working directory of its ranks. It ends with the attempt."""
    return attach(connection.rest, connection.job(name)["name"], {"rank": rank, "worker": worker})


@app.command(
    "port-forward",
    epilog="""\b
Examples:
  client-lib port-forward train-x7k2m 6006         TensorBoard, at http://127.0.0.1:6006
  client-lib port-forward train-x7k2m 8080:6006    the same at port 8080
""",
)
def port_forward(
    ctx: typer.Context,
    connection: Connection,
    name: JobName,
    ports: Annotated[
        str,
        typer.Argument(
            metavar="[LOCAL:]PORT",
            help="Port of the worker; LOCAL is the port of this machine (default: the same; 0: a free one).",
        ),
    ],
    worker: _Worker = None,
) -> None:
    """Make a port of a worker of a running job reachable on this machine, until Ctrl-C."""
    local, _, inner = ports.rpartition(":")
    if not inner.isdecimal() or not (local or inner).isdecimal():
        ctx.fail(f"{ports!r} is neither PORT nor LOCAL:PORT")
    job, request = connection.job(name)["name"], {"port": int(inner), "worker": worker}
    check_port(connection.rest, job, request)
    try:
        listening = socket.create_server(("127.0.0.1", int(local or inner)))
    except (OSError, OverflowError) as error:
        raise Conflict(
            f"port {local or inner} of this machine can't be used: {error}",
            hint=f"choose another: client-lib port-forward {job} 0:{inner} takes a free one",
        ) from error
    with listening:
        own = listening.getsockname()[1]
        printer.data_at_once(f"http://127.0.0.1:{own} is port {inner} of {job}; Ctrl-C ends this")
        forward(connection.rest, job, request, listening)
