"""Sessions of the user in a running worker: commands (`client-lib exec`), and connections to its
ports.

The launcher forks a process for each. It holds the connection to the user and ends
with it. It ends with the attempt, too: then the launcher closes a pipe that all sessions watch.
"""

import fcntl
import json
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import termios
import threading
import time
from contextlib import suppress
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional

from client_lib.durable import write_all
from client_lib.launcher_protocol import control, frames
from client_lib.launcher_protocol.rank_processes import Process, of_no_rank, without_rank_files
from client_lib.worker.loop import reset_signals
from client_lib.worker.system import System

_REST_S = 1.0  # for output after the end of a command: its children may keep the pipe open
_HANG_UP_S = 2.0  # between SIGHUP and SIGKILL
_CONNECT_S = 5.0
Request = Mapping[str, Any]
"""A client_lib.spec.request.SessionRequest as JSON."""


class Sessions:
    """All sessions of one worker, for its launcher."""

    def __init__(self, system: System, processes: List[Process]) -> None:
        self._system = system
        self._processes = processes
        self._over, self._open = os.pipe()

    def begin(self, request: Request, peer: socket.socket) -> None:
        """Hand the connection over to a new process. Raises OSError: none is free."""
        if os.fork() != 0:
            return
        try:
            reset_signals()
            # the launcher sends it to what is left; the pipe says the same
            signal.signal(signal.SIGTERM, lambda *_: None)
            os.setsid()
            self._system.before_exec()
            os.close(self._open)
            peer.setblocking(True)
            peer.sendall(control.encode({"event": control.SESSION}))
            try:
                target = (
                    _connected(request["port"])
                    if request.get("port")
                    else _started(request, self._processes)
                )
            except (OSError, ValueError) as error:  # the latter for a NUL in an argument
                what = (
                    "port %s" % request["port"]
                    if request.get("port")
                    else getattr(error, "filename", None)
                )
                why = "%s: %s" % (what, getattr(error, "strerror", None) or error)
                peer.sendall(frames.json_frame(frames.EXITED, {"error": why}))
            else:
                _Session(peer, self._over, target).run()
            self._system.rank_ended(os.getpid())
        finally:
            os._exit(0)

    def end(self) -> None:
        """End all sessions: the ranks have ended."""
        os.close(self._open)
        os.close(self._over)


class _Target(NamedTuple):
    """The port or command that the user is connected to."""

    write: Callable[[bytes], None]
    end_input: Callable[[], None]
    outputs: Dict[bytes, int]
    """Kind of the frames -> descriptor."""
    command: "Optional[subprocess.Popen[bytes]]" = None
    """Leader of its session and process group; None: the session is a connection,
    and ends with its output.
    """
    terminal: int = -1


def _connected(port: int) -> _Target:
    """Raises OSError: nothing listens on the port. By address: the look-up of a name takes locks,
    and the thread that sends outputs may have held a lock when this process was forked."""

    def connect(family: int, address: str) -> socket.socket:
        connection = socket.socket(family)
        connection.settimeout(_CONNECT_S)
        connection.connect((address, port))
        connection.settimeout(None)
        return connection

    try:
        connection = connect(socket.AF_INET, "127.0.0.1")
    except OSError as error:
        try:
            connection = connect(socket.AF_INET6, "::1")
        except OSError:
            raise error from None
    return _Target(
        connection.sendall,
        lambda: connection.shutdown(socket.SHUT_WR),
        {frames.DATA: connection.fileno()},
    )


def _started(request: Request, processes: List[Process]) -> _Target:
    """Raises OSError with the name of the program or the folder."""
    environment = _environment(request, processes)
    size = request.get("terminal")
    terminal, inner = os.openpty() if size else (-1, subprocess.PIPE)
    if size:
        environment["TERM"] = size["term"]
        _resize(terminal, size["rows"], size["columns"])
    shell = environment.get("SHELL", "")
    if not os.access(shell, os.X_OK):
        shell = shutil.which("bash", path=environment.get("PATH")) or "/bin/sh"
    command = subprocess.Popen(
        request.get("argv") or [shell],
        stdin=inner,
        stdout=inner,
        stderr=inner,
        cwd=processes[0].working_dir,
        env=environment,
        start_new_session=True,
        # stdin is the terminal that controls its session, so that Ctrl-C is a signal
        preexec_fn=(lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)) if size else None,
    )
    stdin = command.stdin
    stdout = command.stdout
    stderr = command.stderr
    if stdin and stdout and stderr:
        outputs = {frames.DATA: stdout.fileno(), frames.ERRORS: stderr.fileno()}
        return _Target(lambda data: write_all(stdin.fileno(), data), stdin.close, outputs, command)
    os.close(inner)
    return _Target(
        lambda data: write_all(terminal, data),
        lambda: None,
        {frames.DATA: terminal},
        command,
        terminal,
    )


def _environment(request: Request, processes: List[Process]) -> Dict[str, str]:
    """The environment of the wanted rank; without a rank, the environment of the worker. What is
    installed beside the interpreter of the ranks, as py-spy, is found by its name."""
    rank = next((process for process in processes if process.rank == request.get("rank")), None)
    environment = (
        without_rank_files(rank.environment) if rank else of_no_rank(processes[0].environment)
    )
    path = environment.get("PATH", os.defpath)
    beside = os.path.dirname((rank or processes[0]).argv[0])
    if os.path.isabs(beside) and beside not in path.split(os.pathsep):
        environment["PATH"] = path + os.pathsep + beside
    return environment


def _resize(terminal: int, rows: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


class _Session:
    """One session in its own process. Each direction has a thread that blocks, so a
    slow end slows the other.
    """

    def __init__(self, peer: socket.socket, over: int, target: _Target) -> None:
        self._peer = peer
        self._over = over
        self._target = target
        self._sending = threading.Lock()

    def run(self) -> None:
        pumps = [_thread(self._send_output, *each) for each in self._target.outputs.items()]
        _thread(self._take_input)
        _thread(self._keep)
        _thread(self._watch)
        code = 0
        rest_s = None
        if self._target.command:
            code = self._target.command.wait()
            rest_s = _REST_S
        for pump in pumps:
            pump.join(rest_s)
        self._send(
            frames.json_frame(frames.EXITED, {"exit_code": code if code >= 0 else 128 - code})
        )

    def _send(self, data: bytes) -> None:
        """Send frames. The end of the connection is the end of this process."""
        try:
            with self._sending:
                self._peer.sendall(data)
        except OSError:
            self._hang_up()

    def _send_output(self, kind: bytes, fd: int) -> None:
        with suppress(OSError):  # the last process has closed the terminal
            for data in iter(lambda: os.read(fd, frames.BLOCK), b""):
                self._send(frames.frame(kind, data))

    def _take_input(self) -> None:
        received = frames.Frames()
        with suppress(OSError):  # as at the end
            while select.select([self._peer], [], [], frames.SILENT_S)[0]:
                data = self._peer.recv(frames.BLOCK)
                if not data:
                    break
                for kind, content in received.feed(data):
                    with suppress(OSError, ValueError):  # the target reads no more
                        if kind == frames.WINDOW:
                            _resize(self._target.terminal, *json.loads(content))
                        elif kind == frames.SIGNAL:
                            self._signal(json.loads(content))
                        elif kind == frames.DATA and content:
                            self._target.write(content)
                        elif kind == frames.DATA:
                            self._target.end_input()
        self._hang_up()

    def _keep(self) -> None:
        while True:
            time.sleep(frames.KEEP_S)
            self._send(frames.frame(frames.KEEP))

    def _watch(self) -> None:
        """Wait for the end of the attempt, or for the user to leave; the other
        threads may be blocked then.
        """
        events = select.poll()
        events.register(self._over, select.POLLIN)
        events.register(self._peer, 0)  # its end alone
        if all(fd != self._over for fd, _ in events.poll()):
            self._hang_up()
        # a user who reads nothing must not delay the end of the job
        if self._sending.acquire(timeout=_REST_S):
            self._peer.settimeout(_REST_S)
            with suppress(OSError):
                self._peer.sendall(
                    frames.json_frame(frames.EXITED, {"error": "the attempt has ended"})
                )
        self._hang_up(0.0)

    def _hang_up(self, grace_s: float = _HANG_UP_S) -> None:
        """End the command and this process."""
        if self._target.command:
            self._signal(signal.SIGHUP)
            with suppress(subprocess.TimeoutExpired):
                self._target.command.wait(grace_s)
            self._signal(signal.SIGKILL)
        os._exit(0)

    def _signal(self, signum: int) -> None:
        if self._target.command:
            with suppress(OSError):  # it has ended
                os.killpg(self._target.command.pid, signum)


def _thread(run: Callable[..., None], *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=run, args=arguments, daemon=True)
    thread.start()
    return thread
