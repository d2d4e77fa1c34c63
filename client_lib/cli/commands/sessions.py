"""`client-lib exec`, `client-lib shell` and `client-lib port-forward`: sessions in a worker of a
running job.

A session carries frames between the worker and this terminal, or a socket of this machine.
"""

from __future__ import annotations

import json
import os
import queue
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from client_lib.cli import printer
from client_lib.cli.connection import Connection
from client_lib.cli.parameters import CommandApp, JobName, JobOrNewest
from client_lib.cli.program import ExitCode
from client_lib.errors import (
    ClientLibError,
    Conflict,
    JobEnded,
    NotFound,
    ServerUnreachable,
    Unavailable,
)
from client_lib.launcher_protocol import frames
from client_lib.spec import paths
from client_lib.transport.failures import Transient
from client_lib.transport.rest import Rest, newer_path

if TYPE_CHECKING:
    from client_lib.job import Job

app = CommandApp()

_WAITING_MAX = 16  # frames that wait to be sent: a slow command slows what it reads from
_SENT_MAX = 2**20  # bytes of one request, to which one more frame may come
_PAUSE_S = 1.0  # before bytes are sent again
_JSON = {"Content-Type": "application/json"}
_BYTES = {"Content-Type": "application/octet-stream"}
Request = Mapping[str, Any]  # a SessionRequest as JSON

_Rank = Annotated[
    int | None, Option(min=0, help="Run on the worker of this rank, with its environment.")
]
_Worker = Annotated[int | None, Option(min=0, help="Number of the worker. Default: 0.")]


@app.command(
    "exec",
    examples="""
  client-lib exec train-x7k2m -- nvidia-smi
  client-lib exec train-x7k2m --rank 3 -- sh -c 'ls -l $CLIENT_LIB_CHECKPOINT_DIR'
  client-lib exec train-x7k2m -- tar c outputs | tar x
""",
)
def exec_(
    connection: Connection,
    name: JobName,
    command: Annotated[
        list[str], Argument(metavar="-- COMMAND...", help="The command and its arguments.")
    ],
    rank: _Rank = None,
    worker: _Worker = None,
) -> int:
    """Run a command in a worker of a running job, in the working directory of its ranks.

    The exit code is that of the command. The command gets a terminal if stdin and stdout are one,
    and ends with the attempt.
    """
    return _attach(connection, name, {"argv": command, "rank": rank, "worker": worker})


@app.command(
    examples="""
  client-lib shell train-x7k2m
  client-lib shell train-x7k2m --worker 1
"""
)
def shell(
    connection: Connection, name: JobOrNewest = None, rank: _Rank = None, worker: _Worker = None
) -> int:
    """Open a shell in a worker of a running job, in the working directory of its ranks.
    It ends with the attempt.
    """
    return _attach(connection, name, {"rank": rank, "worker": worker})


@app.command(
    "port-forward",
    examples="""
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
        Argument(
            metavar="[LOCAL:]PORT",
            help="Port of the worker; LOCAL is the port of this machine (default: the same; 0: a "
            "free one).",
        ),
    ],
    worker: _Worker = None,
) -> int:
    """Make a port of a worker of a running job reachable on this machine, until Ctrl-C or the end
    of the job.
    """
    local, _, inner = ports.rpartition(":")
    if not inner.isdecimal() or not (local or inner).isdecimal():
        ctx.fail(f"{ports!r} is neither PORT nor LOCAL:PORT")
    job = connection.job(name)["name"]
    request = {"port": int(inner), "worker": worker}
    probe = Session(connection.rest, job, request)  # raises Conflict if nothing listens on the port
    probe.send(frames.frame(frames.DATA))
    probe.run(lambda *_: None)
    try:
        listening = socket.create_server(("127.0.0.1", int(local or inner)))
    except (OSError, OverflowError) as error:
        raise Conflict(
            f"port {local or inner} of this machine can't be used: {error}",
            hint=f"choose another: client-lib port-forward {job} 0:{inner} takes a free one",
        ) from error
    from client_lib.client import get_job

    followed = get_job(job, client=connection.api)
    with listening:
        own = listening.getsockname()[1]
        printer.data_at_once(f"http://127.0.0.1:{own} is port {inner} of {job}; Ctrl-C ends this")
        threading.Thread(
            target=_accept, args=(connection.rest, job, request, listening), daemon=True
        ).start()
        printer.hint(f"Error: {_end_of(followed)}: port {own} is closed")
    return ExitCode.FAILED


def _accept(rest: Rest, job: str, request: Request, listening: socket.socket) -> None:
    """Begin a session for each connection, until the socket is closed."""
    with suppress(OSError):
        while True:
            peer, _ = listening.accept()
            threading.Thread(
                target=_carry, args=(Session(rest, job, request), peer), daemon=True
            ).start()


def _end_of(job: Job[Any]) -> str:
    """Wait for the end of a job, as a sentence. A local server that was restarted meanwhile is
    found again, also for the sessions."""
    while True:
        try:
            return f"job {job.name} is {job.wait().state}"
        except JobEnded as ended:
            return f"job {job.name} is {ended.info.state}"
        except NotFound:
            return f"job {job.name} was deleted"
        except (ServerUnreachable, Unavailable):  # it is being restarted
            time.sleep(_PAUSE_S)


def _carry(session: Session, peer: socket.socket) -> None:
    """Carry a connection of this machine to the port of the session."""
    session.send_all_of(peer.recv)
    with peer, suppress(OSError):  # the program of this machine has closed it
        try:
            session.run(lambda _, data: peer.sendall(data))
        except ClientLibError as problem:
            printer.hint(problem.message)
        peer.shutdown(socket.SHUT_RDWR)  # `close` alone waits for the thread that reads


# --- a command with the stdin, stdout and stderr of this process


def _attach(connection: Connection, name: str | None, request: Request) -> int:
    """Run a command in a worker, with a terminal if stdin and stdout are one; return its exit code.
    Ctrl-C goes to the command; without a terminal, the second one ends the session. Raises as
    `Session.run`."""
    job = connection.job(name)["name"]
    has_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if has_terminal:
        columns, rows = os.get_terminal_size(1)
        term = os.environ.get("TERM", "xterm")
        request = {**request, "terminal": {"rows": rows, "columns": columns, "term": term}}

    def write(kind: bytes, data: bytes) -> None:
        stream = sys.stderr.buffer if kind == frames.ERRORS else sys.stdout.buffer
        stream.write(data)
        stream.flush()

    session = Session(connection.rest, job, request)
    session.send_all_of(partial(os.read, 0))
    with _raw_terminal(session) if has_terminal else _interrupts(session):
        return session.run(write)


@contextmanager
def _raw_terminal(session: Session) -> Iterator[None]:
    """Pass keys on as they are typed, Ctrl-C too, and each new size of the terminal."""
    import termios
    import tty

    def resized(*_: object) -> None:
        columns, rows = os.get_terminal_size(1)
        session.send(frames.json_frame(frames.WINDOW, (rows, columns)), at_once=True)

    before = termios.tcgetattr(0)
    signal.signal(signal.SIGWINCH, resized)
    try:
        tty.setraw(0, termios.TCSADRAIN)  # keeps what was typed before
        yield
    finally:
        signal.signal(signal.SIGWINCH, signal.SIG_DFL)
        termios.tcsetattr(0, termios.TCSADRAIN, before)


@contextmanager
def _interrupts(session: Session) -> Iterator[None]:
    def interrupt(*_: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        session.send(frames.json_frame(frames.SIGNAL, int(signal.SIGINT)), at_once=True)

    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:  # a script's `&` has it ignored
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


# --- a session


class Session:
    """One session. `run` is called once; `send` by any thread, before it or while it runs."""

    def __init__(self, rest: Rest, job: str, request: Request) -> None:
        self._rest = rest
        self._request = request
        if "port" in request:
            self._again = f"port-forward {job} ..."
        elif "argv" in request:
            self._again = f"exec {job} ..."
        else:
            self._again = f"shell {job}"
        self._path = paths.job_session(job, secrets.token_hex(16))
        self._waiting: queue.Queue[bytes] = queue.Queue(_WAITING_MAX)
        self._ended = threading.Event()

    def send(self, data: bytes, *, at_once: bool = False) -> None:
        """Send a frame, if the session goes on. `at_once`: drop it if others wait, as
        a handler of signals must.
        """
        while not self._ended.is_set():
            try:
                self._waiting.put(data, block=not at_once, timeout=_PAUSE_S)
                return
            except queue.Full:
                if at_once:
                    return

    def send_all_of(self, read: Callable[[int], bytes]) -> None:
        """Send what `read` returns, up to its end, on a thread."""

        def send() -> None:
            with suppress(OSError):  # it is closed
                while data := read(frames.BLOCK):
                    self.send(frames.frame(frames.DATA, data))
            self.send(frames.frame(frames.DATA))

        threading.Thread(target=send, daemon=True).start()

    def run(self, show: Callable[[bytes, bytes], None]) -> int:
        """Begin, and pass each piece of output to `show` with its kind (DATA, ERRORS) until the
        end; the exit code. Raises Conflict: there is no session, and why; NotSupported: the server
        is too old; the errors of a call."""
        received = frames.Frames()
        begins = json.dumps(self._request).encode()
        opened = self._rest.stream(self._path, headers=_JSON, read_s=frames.SILENT_S, begins=begins)
        try:
            with newer_path("does not support sessions"), suppress(Transient), opened as answer:
                threading.Thread(target=self._send_all, daemon=True).start()
                for block in answer.blocks:
                    for kind, data in received.feed(block):
                        if kind == frames.EXITED:
                            ended = json.loads(data)
                            if "error" in ended:
                                raise Conflict(str(ended["error"]))
                            return int(ended["exit_code"])
                        if kind != frames.KEEP:
                            show(kind, data)
        finally:
            self._ended.set()
        raise ServerUnreachable(
            "the session was cut off: the server went away, or the worker was lost",
            hint=f"`client-lib {self._again}` begins another one",
        )

    def _send_all(self) -> None:
        """Send the frames that wait, or KEEP after a pause, until the session has ended."""
        offset = 0
        data = b""
        put = partial(self._rest.call, "PUT", self._path, headers=_BYTES, retry_s=0.0)
        while not self._ended.is_set():
            if not data:
                try:
                    data = self._waiting.get(timeout=frames.KEEP_S)
                except queue.Empty:
                    data = frames.frame(frames.KEEP)
                # no other thread takes from it
                while len(data) < _SENT_MAX and not self._waiting.empty():
                    data += self._waiting.get()
            try:
                put(params={"offset": offset}, body=data)
            except (Conflict, NotFound):  # it has ended: `run` sees that, too
                return
            except ClientLibError:  # the command reads nothing now, or the server does not answer
                self._ended.wait(_PAUSE_S)
            else:
                offset = offset + len(data)
                data = b""
