"""Calls one server: finds it, repeats calls while it does not answer, and raises every failure as
one of our errors.

The caller chooses the library: `http` (requests) for the SDK; `http_client` for the command line,
because requests takes a quarter of the time of a `client-lib submit` to load. `Transport` is what
both have in common.

Calls are repeated with exponential back-off, full jitter and the server's Retry-After, for a bound
in seconds:

    pause after try n = max(Retry-After, random between 0 and min(0.05 x 2^(n-1), 5) seconds)

The ranges are 0 .. 0.05, 0 .. 0.1, ... 0 .. 5 s: about 16 tries within 30 s. The default bound is
120 s for an address that has answered this user before, else 30 s. A pause that would end after the
bound is not begun. Only calls that are safe to repeat are repeated:
a POST that creates a job or a group carries an Idempotency-Key.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from client_lib import errors
from client_lib.spec import paths
from client_lib.spec.paths import HEARTBEAT_S
from client_lib.transport import answered_servers
from client_lib.transport.config import CA_BUNDLE, Config, Endpoint
from client_lib.transport.failures import (
    ERROR_BODY_MAX,
    READ_S,
    FailureRow,
    Transient,
    bad_content,
    check_endpoint_rules,
    error_of_answer,
    translated,
)
from client_lib.version import user_agent

if TYPE_CHECKING:
    import tenacity

T = TypeVar("T")

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 5.0
BLOCK = 256 * 1024  # bytes of a body that are read at once
WARN_AFTER_S = 2.0  # a server that is back sooner is not worth a warning

_log = logging.getLogger("client_lib")

Params = Mapping[str, "str | int | float | Sequence[str] | None"]
"""Parameters of a query. A parameter that is None is not sent."""
# called with the bytes that were sent so far, and all there are
OnUpload = Callable[[int, int], None]


class Upload:
    """A file as a body that is read in blocks, by each try from its beginning. Its length is sent
    first, so that a server can refuse it unread."""

    def __init__(self, path: Path, on_upload: OnUpload | None) -> None:
        self._path = path
        self._on_upload = on_upload
        self._size = path.stat().st_size

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[bytes]:
        sent = 0
        with self._path.open("rb") as file:
            while block := file.read(BLOCK):
                yield block
                sent += len(block)
                if self._on_upload:
                    self._on_upload(sent, self._size)


class Request(NamedTuple):
    method: str
    path: str
    params: Params
    body: bytes | Upload | None
    headers: Mapping[str, str]
    read_s: float  # longest silence


class Reply(NamedTuple):
    """A good answer, its body unread."""

    status: int
    blocks: Iterator[bytes]
    """The body as it arrives, also the last bytes before a cut. Raises Transient
    for a body that breaks off.
    """


class Transport(ABC):
    """Connections to one endpoint, for any number of threads. A subclass sends by its library."""

    failures: Sequence[FailureRow]
    """Raise our errors in place of the library's."""

    def __init__(self, endpoint: Endpoint, config: Config) -> None:
        check_endpoint_rules(endpoint, config)
        self.endpoint = endpoint
        self.url = endpoint.url
        self.headers = {"User-Agent": user_agent("client-lib"), "Accept-Encoding": "identity"}
        if endpoint.token:
            self.headers["Authorization"] = f"Bearer {endpoint.token}"
        self.trusted = config.ca_bundle or os.environ.get("REQUESTS_CA_BUNDLE")
        """File or folder of certificate authorities; None: the default ones."""
        if (
            self.trusted
            and self.url.lower().startswith("https:")
            and not os.path.exists(self.trusted)
        ):
            raise errors.InvalidRequest(
                f"there are no certificate authorities in {self.trusted!r}: it does not exist",
                hint=f"see ca_bundle, {CA_BUNDLE} and REQUESTS_CA_BUNDLE",
            )

    @abstractmethod
    def send(self, request: Request) -> AbstractContextManager[Any]:
        """The answer with its `status`, `reason` and `headers`, its body unread."""

    @abstractmethod
    def body(self, answer: Any) -> Iterator[bytes]:
        """The body as it arrives."""

    @abstractmethod
    def close(self) -> None: ...

    @contextmanager
    def open(self, request: Request) -> Iterator[Reply]:
        """Raises the error that any other answer means, or Transient if
        the next try may succeed.
        """
        with ExitStack() as opened:
            with translated(self.failures, self.url, request.read_s):
                answer = opened.enter_context(self.send(request))
            blocks = self._blocks(answer, request)
            if not 200 <= answer.status < 300:
                body = b""
                # of a body that breaks off; the status is enough
                with suppress(Transient, errors.ClientLibError):
                    while len(body) < ERROR_BODY_MAX and (block := next(blocks, b"")):
                        body += block
                url = self.url + request.path
                header = answer.headers.get
                raise error_of_answer(
                    request.method, url, answer.status, answer.reason, header, body
                )
            yield Reply(answer.status, blocks)

    def _blocks(self, answer: Any, request: Request) -> Iterator[bytes]:
        with translated(self.failures, self.url, request.read_s):
            yield from self.body(answer)


Connect = Callable[[Endpoint, Config], Transport]


@contextmanager
def newer_path(lacks: str | None) -> Iterator[None]:
    """Calls of a path that older servers do not know. `lacks`: what these can't do; None: they know
    it. Raises NotSupported."""
    try:
        yield
    except errors.NotFound as missing:
        if lacks and missing.message.startswith(paths.NO_SUCH_PATH):
            raise errors.NotSupported(
                f"this server's version {lacks}", hint="upgrade it"
            ) from missing
        raise


class Rest:
    """Calls to one server. Thread-safe; a forked child opens connections of its own."""

    def __init__(self, locate: Callable[[], Endpoint], config: Config, connect: Connect) -> None:
        """`locate` returns the server's address and a token: at first, after a lost
        connection, for a new token.
        """
        self._locate = locate
        self._config = config
        self._connect = connect
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._connected: Transport | None = None

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
        """Return the body of a good answer. The call must be safe to repeat: it is repeated while
        no answer comes.

        `retry_s`: replaces the configured bound of the repetitions. `removes`: NotFound on a
        repeated call means that an earlier try succeeded and its answer was lost; the body is empty
        then.

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

        return self._repeated(attempt, retry_s)

    def read(
        self,
        path: str,
        key: str,
        params: Params | None = None,
        *,
        read_s: float = READ_S,
        retry_s: float | None = None,
    ) -> dict[str, Any]:
        """The JSON object of a good answer to GET, which holds `key`. Raises as `call`, and
        BadResponse for another answer."""
        body = self.call("GET", path, params=params, read_s=read_s, retry_s=retry_s)
        try:
            found = json.loads(body)
        except ValueError as error:
            raise bad_content(self.endpoint.url, "JSON", body) from error
        if not isinstance(found, dict) or key not in found:
            raise bad_content(self.endpoint.url, f"JSON with {key!r}", body)
        return found

    def download(self, path: str, target: Path) -> None:
        """Write the body of a good answer to a file; a body that breaks off is asked
        for again. Raises as `call`.
        """

        def attempt(connection: Transport) -> None:
            with connection.open(request) as answer, target.open("wb") as file:
                file.writelines(answer.blocks)

        request = Request("GET", path, {}, None, {}, READ_S)
        self._repeated(attempt, None)

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
        """An answer whose body the caller reads inside the block, and which is not asked for again.
        `read_s`: the longest silence. `begins`: the body of a POST, which is sent once. Raises as
        `call`."""
        request = Request(
            "POST" if begins else "GET", path, _given(params), begins, headers or {}, read_s
        )
        retry_s = 0.0 if begins else None
        with ExitStack() as opened:
            yield self._repeated(lambda found: opened.enter_context(found.open(request)), retry_s)

    def open_logs(
        self, name: str, params: Params, deadline: float | None = None
    ) -> Iterator[bytes]:
        """The body of the log stream of a job, as it arrives. Silence of three heartbeats means a
        dead connection. With `deadline` (in time of time.monotonic()) the body ends there. Asks
        once: the follower decides when to ask again. Raises Transient, and as `call`."""
        read_s = (
            3 * HEARTBEAT_S
            if deadline is None
            else max(0.01, min(3 * HEARTBEAT_S, deadline - time.monotonic()))
        )
        headers = {"Accept": paths.LOG_FRAMES}
        request = Request("GET", paths.job(name, "logs"), _given(params), None, headers, read_s)
        with ExitStack() as opened:
            answer = self._once(lambda found: opened.enter_context(found.open(request)))
            for block in answer.blocks:
                yield block
                if deadline is not None and time.monotonic() > deadline:
                    return

    def _repeated(self, attempt: Callable[[Transport], T], bound_s: float | None) -> T:
        """The value of `attempt`, which is repeated while it raises Transient and `bound_s` seconds
        are not over; None: the configured bound. Raises the error inside the last Transient; after
        several tries its message says how long they took."""
        try:
            return self._once(attempt)
        except Transient as first:
            if bound_s is None:
                endpoint = self._config.endpoint
                answered = endpoint is not None and answered_servers.has_answered(endpoint)
                bound_s = self._config.patience_s(answered=answered)
            if bound_s <= 0:
                raise first.error from first.__cause__
            return _again(lambda: self._once(attempt), first, bound_s)

    def _once(self, attempt: Callable[[Transport], T]) -> T:
        """The value of `attempt`. After Transient the next try looks for the server again."""
        connected = self._connection()
        try:
            value = attempt(connected)
            if self._config.endpoint is not None:
                answered_servers.note(self._config.endpoint)
            return value
        except Transient:
            with self._own_lock():  # running calls of other threads keep the old connections
                if self._connected is connected:
                    self._connected = None  # a local server comes back at another port
            raise

    def close(self) -> None:
        with self._own_lock():
            if self._connected:
                self._connected.close()
            self._connected = None

    def _connection(self) -> Transport:
        with self._own_lock():
            found = self._connected
            if not found or time.time() >= found.endpoint.renew_at:
                found = self._connected = self._connect(self._locate(), self._config)
            return found

    def _own_lock(self) -> threading.Lock:
        """The lock of this process: a forked child gets a new one, as a thread of the parent may
        have held the old lock at the fork.
        """
        if self._pid != os.getpid():
            self._connected = None
            self._lock = threading.Lock()
            self._pid = os.getpid()  # last: another thread of the child takes the new lock
        return self._lock


def _again(attempt: Callable[[], T], first: Transient, bound_s: float) -> T:
    """Repeat a call whose first try failed with `first`."""
    import tenacity  # 60 ms to load, and a call that succeeds at once does not need it

    pending = [first]
    has_warned = False
    jitter = tenacity.wait_random_exponential(FIRST_PAUSE_S, LONGEST_PAUSE_S)

    def next_try() -> T:
        if pending:  # the caller made the first try: tenacity begins with its failure
            raise pending.pop()
        return attempt()

    def failure(state: tenacity.RetryCallState) -> Transient:
        problem = state.outcome.exception() if state.outcome else None
        assert isinstance(problem, Transient)  # nothing else is retried
        return problem

    def warn_once(state: tenacity.RetryCallState) -> None:
        nonlocal has_warned
        if not has_warned and (state.seconds_since_start or 0) > WARN_AFTER_S:
            has_warned = True
            _log.warning("%s; trying again for up to %.0f s", failure(state).error.message, bound_s)

    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(Transient),
        wait=lambda state: max(failure(state).retry_after_s, jitter(state)),
        stop=tenacity.stop_before_delay(bound_s),
        before_sleep=warn_once,
        reraise=True,
    )
    try:
        return retrying(next_try)
    except Transient as last:
        last.error.message += (
            f" (tried for {retrying.statistics['delay_since_first_attempt']:.1f} s)"
        )
        raise last.error from last.__cause__


def _given(params: Params | None) -> Params:
    return {name: value for name, value in (params or {}).items() if value is not None}
