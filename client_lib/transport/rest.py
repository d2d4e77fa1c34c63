"""Calls to one server: located, repeated while it does not answer, and every failure raised as one of our errors.

Callers pass only what is safe to repeat; a POST is, because it carries an Idempotency-Key.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import NamedTuple, TypeVar

from client_lib import errors
from client_lib.spec import paths
from client_lib.spec.log_stream import HEARTBEAT_S
from client_lib.transport.config import Config, Endpoint
from client_lib.transport.failures import READ_S, Transient
from client_lib.transport.http import Params, Reply, Request, Transport, Upload

T = TypeVar("T")

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 5.0
_WARN_AFTER_S = 2.0  # a server that is back sooner is not worth a warning

_log = logging.getLogger("client_lib")


def repeated(attempt: Callable[[], T], bound_s: float) -> T:
    """Return the value of `attempt()`, repeated while it raises Transient and `bound_s` seconds are not over: with
    exponential back-off, full jitter and the server's Retry-After.

        pause after try n = max(Retry-After, random between 0 and min(0.05 x 2^(n-1), 5) seconds)

    Those are about 16 tries within the default bound of 30 s. A pause that would end after the bound is not begun.
    Raises the error inside the last Transient; its message names the time of the tries.
    """
    began, tries, told = time.monotonic(), 0, False
    while True:
        try:
            return attempt()
        except Transient as failed:
            pause_s = max(failed.retry_after_s, random.uniform(0, min(FIRST_PAUSE_S * 2**tries, LONGEST_PAUSE_S)))
            tries, took_s = tries + 1, time.monotonic() - began
            if took_s + pause_s >= bound_s:
                if bound_s > 0:
                    failed.error.message += f" (tried for {took_s:.1f} s)"
                raise failed.error from failed.__cause__
            if took_s > _WARN_AFTER_S and not told:
                told = True
                _log.warning("%s; trying again for up to %.0f s", failed.error.message, bound_s)
        time.sleep(pause_s)


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

    def __init__(self, locate: Callable[[], Endpoint], config: Config) -> None:
        """`locate` returns the server's address and a token. It is called before the first request, after a lost
        connection, and when the token has to be renewed."""
        self._locate = locate
        self._config = config
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

        return repeated(once, bound_s)

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
                self._connected = _Connected(Transport(endpoint, self._config), endpoint, os.getpid())
            return self._connected

    def _forget(self, connected: _Connected) -> None:
        """Make the next call locate the server again. Running calls of other threads keep the old connections."""
        with self._lock:
            if self._connected is connected:
                self._connected = None


def _given(params: Params | None) -> Params:
    return {name: value for name, value in (params or {}).items() if value is not None}
