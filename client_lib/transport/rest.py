"""Calls to one server: located, repeated while it does not answer, and every failure raised as one of our errors.

The caller chooses the library: `http` (requests) for the SDK; `cli.http_client` for the command line, because requests
takes a quarter of the time of a `client-lib submit` to load. `failures` translates for both, `retry` decides how often
a call is repeated.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import NamedTuple, Protocol, TypeVar

from client_lib import errors
from client_lib.spec import paths
from client_lib.spec.log_stream import HEARTBEAT_S
from client_lib.transport import retry
from client_lib.transport.config import Config, Endpoint
from client_lib.transport.failures import READ_S
from client_lib.transport.retry import Transient

T = TypeVar("T")
Params = Mapping[str, "str | int | float | Sequence[str] | None"]
"""Parameters of a query; those that are None are not sent."""


class Upload(Protocol):
    """A body that is read in blocks, by each try from its beginning. Its length is sent first, so that a server can
    refuse it unread."""

    def __iter__(self) -> Iterator[bytes]: ...
    def __len__(self) -> int: ...


class Request(NamedTuple):
    method: str
    path: str
    params: Params
    body: bytes | Upload | None
    headers: Mapping[str, str]
    read_s: float
    """Longest silence, in seconds."""


class Reply(NamedTuple):
    """A good answer, its body unread."""

    status: int
    blocks: Iterator[bytes]
    """The body as it arrives, also the last bytes before a cut. Raises Transient for a body that breaks off."""


class Transport(Protocol):
    """Connections to one endpoint, for any number of threads."""

    def open(self, request: Request) -> AbstractContextManager[Reply]:
        """Raises the error that any other answer means, or Transient if the next try may succeed."""

    def close(self) -> None: ...


Connect = Callable[[Endpoint, Config], Transport]


@contextmanager
def newer_path(lacks: str) -> Iterator[None]:
    """Calls of a path that older servers do not know. `lacks`: what these can't do. Raises NotSupported."""
    try:
        yield
    except errors.NotFound as missing:
        if missing.message.startswith(paths.NO_SUCH_PATH):
            raise errors.NotSupported(f"this server's version {lacks}", hint="upgrade it") from missing
        raise


class _Connected(NamedTuple):
    connection: Transport
    endpoint: Endpoint
    pid: int

    @property
    def usable(self) -> bool:
        return self.pid == os.getpid() and time.time() < self.endpoint.renew_at


class Rest:
    """Calls to one server. Thread-safe; a forked child opens connections of its own."""

    def __init__(self, locate: Callable[[], Endpoint], config: Config, connect: Connect) -> None:
        """`locate` returns the server's address and a token. It is called before the first request, after a lost
        connection, and when the token has to be renewed."""
        self._locate = locate
        self._config = config
        self._connect = connect
        self._lock = threading.Lock()
        self._connected: _Connected | None = None

    @property
    def endpoint(self) -> Endpoint:
        return self._connection().endpoint

    def call(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        body: bytes | Upload | None = None,
        headers: Mapping[str, str] | None = None,
        read_s: float = READ_S,
        removes: bool = False,
        retry_s: float | None = None,
    ) -> bytes:
        """Return the body of a good answer. The call must be safe to repeat: it is repeated while no answer comes.

        `retry_s`: replaces the configured bound of the repetitions.
        `removes`: NotFound on a repeated call means that an earlier try succeeded and its answer was lost; the body is
        empty then.
        Raises the error that the server sent, or one that explains why there is no answer.
        """
        request = Request(method, path, _given(params), body, headers or {}, read_s)
        tries = 0

        def attempt(connection: Transport) -> bytes:
            nonlocal tries
            tries += 1
            try:
                with connection.open(request) as answer:
                    return b"".join(answer.blocks)
            except errors.NotFound:
                if removes and tries > 1:
                    return b""
                raise

        return self._repeated(attempt, self._config.retry_s if retry_s is None else retry_s)

    @contextmanager
    def stream(
        self,
        path: str,
        *,
        params: Params | None = None,
        headers: Mapping[str, str] | None = None,
        read_s: float,
        begins: bytes | None = None,
    ) -> Iterator[Reply]:
        """An answer whose body the caller reads inside the block. `read_s`: the longest silence. `begins`: the body of
        a POST, which is sent once.

        Raises as `call`; its body is not asked for again.
        """
        request = Request("POST" if begins else "GET", path, _given(params), begins, headers or {}, read_s)
        retry_s = 0.0 if begins else self._config.retry_s
        with ExitStack() as opened:
            yield self._repeated(lambda found: opened.enter_context(found.open(request)), retry_s)

    def open_logs(self, name: str, params: Params, deadline: float | None = None) -> Iterator[bytes]:
        """The body of the log stream of a job, as it arrives. Silence of three heartbeats means a dead connection.

        With `deadline` (of time.monotonic()) it ends there, with a Transient if nothing came until then.
        """
        read_s = 3 * HEARTBEAT_S if deadline is None else max(0.01, min(3 * HEARTBEAT_S, deadline - time.monotonic()))
        headers = {"Accept": paths.LOG_FRAMES}
        with self.stream(paths.job(name, "logs"), params=params, headers=headers, read_s=read_s) as answer:
            for block in answer.blocks:
                yield block
                if deadline is not None and time.monotonic() > deadline:
                    return

    def _repeated(self, attempt: Callable[[Transport], T], bound_s: float) -> T:
        def once() -> T:
            connected = self._connection()
            try:
                return attempt(connected.connection)
            except Transient:
                self._forget(connected)  # a local server comes back at another port
                raise

        return retry.call(once, bound_s)

    def close(self) -> None:
        with self._lock:
            if self._connected:
                self._connected.connection.close()
            self._connected = None

    def _connection(self) -> _Connected:
        connected = self._connected
        if connected and connected.usable:
            return connected
        with self._lock:
            if not self._connected or not self._connected.usable:
                endpoint = self._locate()
                self._connected = _Connected(self._connect(endpoint, self._config), endpoint, os.getpid())
            return self._connected

    def _forget(self, connected: _Connected) -> None:
        """Make the next call locate the server again. Running calls of other threads keep the old connections."""
        with self._lock:
            if self._connected is connected:
                self._connected = None


def _given(params: Params | None) -> Params:
    return {name: value for name, value in (params or {}).items() if value is not None}
