"""The control socket of a launcher: both ends and their messages.

A runtime (the client) sends instructions, the launcher (the server) sends events. Each is one JSON
object on a line.

Events, from the launcher to every peer:

    {"event": "ready"}    prepared: code unpacked, script checked; no rank runs
    {"event": "started", "warm": false, "fresh_because": null, "threads": 4}
                          every rank of this worker runs. warm: forked from the warm pool;
                          fresh_because: why not, if the launcher itself was forked from it;
                          threads: OMP_NUM_THREADS, unless the job sets it
    {"event": "ended"}    report.json is written
    {"event": "stacks"}   answers "stacks": stacks.json is written, or could not be written
    {"event": "quiet", "ranks": {"1": 12.5}}
                          the ranks that do nothing, and for how many seconds

A peer that connects later gets the newest of the first three events.

Instructions, from a peer to the launcher:

    {"do": "go"}                     start the ranks; may be repeated
    {"do": "stacks"}                 take the stacks of the ranks; only if "started" has
                                     "stacks": true
    {"do": "stop", "grace_s": 30.0}  SIGTERM, and SIGKILL after the grace; also before "go".
                                     null: the grace of the plan, because another worker failed.
                                     "interrupt": true: SIGINT in place of SIGTERM
    {"do": "exit"}                   after "ended": the launcher may exit
    {"do": "session", ...}           only if "started" has "sessions": true. The launcher answers
                                     {"event": "session"}; from then on the connection carries
                                     frames (frames.py)

End of file together with a free lock (see directory.py) means that the launcher is dead. A socket's
path may have any length: if it exceeds the system's limit (about 100 bytes), the socket is reached
through a short symbolic link that exists during the call only.
"""

import contextlib
import json
import os
import socket
import time
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    Iterator,
    List,
    Mapping,
    Optional,
    Union,
)

from client_lib.durable import remove

if TYPE_CHECKING:  # clients load the frames alone
    from client_lib.worker.loop import Loop

READY = "ready"
STARTED = "started"
ENDED = "ended"
GO = "go"
STOP = "stop"
EXIT = "exit"
STACKS = "stacks"  # an instruction, and the event that answers it
QUIET = "quiet"
SESSION = "session"  # an instruction, and the event that answers it
_PATH_MAX = 100  # bytes; sun_path holds 104 on macOS and 108 on Linux, with a NUL
_LINE_MAX = 512 * 1024
_SESSION_S = 5.0
_AGAIN_S = 0.1  # how often a peer whose buffer is full is tried again
Message = Dict[str, Any]


def encode(message: Message) -> bytes:
    return json.dumps(message).encode() + b"\n"


def order(do: str, **more: object) -> bytes:
    """An instruction: `order(GO)`, `order(STOP, grace_s=30.0)`."""
    return encode({"do": do, **more})


class Lines:
    """Collects received bytes and returns whole messages; a line that is no JSON
    object, or too long, is dropped.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> List[Message]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[:_LINE_MAX]
        return [message for message in map(_decode, lines) if message is not None]


def _decode(line: Union[bytes, bytearray]) -> Optional[Message]:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None


@contextlib.contextmanager
def _short(path: str) -> Iterator[str]:
    """Another path to the file, short enough for a socket address."""
    if len(os.fsencode(path)) <= _PATH_MAX:
        yield path
        return
    import tempfile  # here: takes 5 ms, and few paths are that long

    with tempfile.TemporaryDirectory(prefix="cl-", dir="/tmp") as folder:
        link = os.path.join(folder, "d")
        os.symlink(os.path.dirname(os.path.abspath(path)), link)
        yield os.path.join(link, os.path.basename(path))


def connect(path: str) -> socket.socket:
    """A blocking connection to the launcher that listens on `path`. Raises OSError:
    FileNotFoundError before it listens, ConnectionRefusedError if it is dead, BlockingIOError if it
    accepts no connection now."""
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        peer.setblocking(False)  # a listener that accepts nothing must not stop its caller
        with _short(path) as address:
            peer.connect(address)
        peer.setblocking(True)
    except OSError:
        peer.close()
        raise
    return peer


def begin_session(peer: socket.socket, request: Mapping[str, object]) -> None:
    """Make this connection to a launcher a session. Reads no byte of its first frame.
    Raises OSError that says why.
    """
    until = time.monotonic() + _SESSION_S
    try:
        if not _message(peer, until).get("sessions"):
            raise OSError(
                "its launcher runs no ranks now, or its version does not support sessions"
            )
        peer.sendall(encode({**request, "do": SESSION}))
        # an event for all peers may come before
        while _message(peer, until).get("event") != SESSION:
            pass
    except socket.timeout:
        raise OSError("its launcher did not answer within %g s" % _SESSION_S) from None
    peer.settimeout(None)


def _message(peer: socket.socket, until: float) -> Message:
    """Raises OSError: it is cut off or too long, or not whole at this time of time.monotonic()."""
    line = bytearray()
    while not line.endswith(b"\n"):
        left_s = until - time.monotonic()
        if left_s <= 0:
            raise socket.timeout
        peer.settimeout(left_s)
        byte = peer.recv(1)
        if not byte or len(line) == _LINE_MAX:
            raise ConnectionError(
                "its launcher has closed the connection, or does not use this protocol"
            )
        line += byte
    return _decode(line) or {}


class ControlConnection:
    """A blocking end of a connection, for callers without an event loop."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._lines = Lines()
        self._waiting: List[Message] = []

    def send(self, message: bytes) -> None:
        self._socket.sendall(message)

    def receive(self, timeout: Optional[float] = None) -> Optional[Message]:
        """The next message; None: the other end has closed the connection. Raises
        socket.timeout after `timeout` s.
        """
        self._socket.settimeout(timeout)
        while not self._waiting:
            data = self._socket.recv(65536)
            if not data:
                return None
            self._waiting = self._lines.feed(data)
        return self._waiting.pop(0)

    def close(self) -> None:
        self._socket.close()


class ControlServer:
    """The launcher's end, without a thread: driven by its event loop. `on_instruction` gets every
    message but the order for a session, `on_session` that with the peer, which this server then
    leaves alone."""

    def __init__(
        self,
        path: str,
        on_instruction: Callable[[Message], None],
        loop: "Loop",
        on_session: Callable[[Message, socket.socket], None],
    ) -> None:
        self._on_instruction = on_instruction
        self._loop = loop
        self._on_session = on_session
        self._path = path
        self._peers: Dict[int, socket.socket] = {}
        self._unsent: Dict[int, bytes] = {}  # of peers whose buffers are full
        self._newest: Optional[bytes] = None
        self._socket = _listen(path)
        loop.watch(self._socket.fileno(), self._accept)

    def announce(self, event: str, **more: object) -> None:
        """Send the event to all peers, and to each that connects later. One that does not
        read gets it when it does.
        """
        self._newest = encode({"event": event, **more})
        for fd in list(self._peers):
            self._send(fd, self._newest)

    def tell(self, event: str, **more: object) -> None:
        """Send the event to the connected peers for which no earlier event waits."""
        for fd in [fd for fd in self._peers if fd not in self._unsent]:
            self._send(fd, encode({"event": event, **more}))

    def close(self) -> None:
        for fd in list(self._peers):
            self._drop(fd)
        self._loop.forget(self._socket.fileno())
        self._socket.close()
        remove(self._path)

    def _accept(self) -> None:
        try:
            peer, _ = self._socket.accept()
        except OSError:  # the peer has gone, or no descriptor is free: it will try again
            return
        self.take(peer)

    def take(self, peer: socket.socket) -> None:
        """Serve this peer, which is connected already."""
        peer.setblocking(False)
        fd = peer.fileno()
        lines = Lines()
        self._peers[fd] = peer
        self._loop.watch(fd, lambda: self._read(fd, lines))
        if self._newest:
            self._send(fd, self._newest)

    def _read(self, fd: int, lines: Lines) -> None:
        peer = self._peers[fd]
        try:
            data = peer.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(fd)
        for message in lines.feed(data):
            if message.get("do") != SESSION:
                self._on_instruction(message)
            elif self._peers.get(fd) is peer:
                # it is still connected, after an answer to an earlier message
                self._forget(fd)
                self._on_session(message, peer)
                return

    def _send(self, fd: int, data: bytes) -> None:
        """Send what the peer's buffer takes, and the rest as soon as it takes more. The agent of a
        pod can't connect again, so a peer is dropped only if it has gone."""
        waits = fd in self._unsent
        self._unsent[fd] = self._unsent.get(fd, b"") + data
        if not waits:
            self._send_rest(fd, self._peers[fd])

    def _send_rest(self, fd: int, peer: socket.socket) -> None:
        if self._peers.get(fd) is not peer:
            return
        try:
            while self._unsent[fd]:
                self._unsent[fd] = self._unsent[fd][peer.send(self._unsent[fd]) :]
            del self._unsent[fd]
        except BlockingIOError:
            self._loop.call_later(_AGAIN_S, lambda: self._send_rest(fd, peer))
        except OSError:
            self._drop(fd)

    def _drop(self, fd: int) -> None:
        self._forget(fd).close()

    def _forget(self, fd: int) -> socket.socket:
        self._loop.forget(fd)
        self._unsent.pop(fd, None)
        return self._peers.pop(fd)


def _listen(path: str) -> socket.socket:
    """Listen before the socket gets its name, so that a peer that finds it can connect."""
    unnamed = path + ".new"
    remove(unnamed)  # left by a dead launcher: we hold the lock
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with _short(unnamed) as address:
        listener.bind(address)
    os.chmod(unnamed, 0o600)
    listener.listen(16)
    listener.setblocking(False)
    os.rename(unnamed, path)
    return listener
