"""HTTP client of the server's worker routes, with the standard library alone: the one of the agent and the launcher.

One object per thread: it holds one connection. Proxy variables are ignored (http.client never reads them): the server
runs in the cluster, or the operator has configured its address.
"""

import http.client
import json
import os
import ssl
from typing import Any, BinaryIO, Callable, List, Mapping, NamedTuple, Optional, Tuple, TypeVar, Union
from urllib.parse import quote, urlencode, urlsplit

from client_lib.worker.disk import is_full
from client_lib.worker.pod.settings import PodSettings

PROTOCOL = "1"
_CONNECT_S = 5.0
_ANSWER_S = 20.0
_BLOCK = 256 * 1024

Body = Union[bytes, BinaryIO]
T = TypeVar("T")


class RequestFailed(Exception):
    """`status` is HTTP's; 0: there was no answer."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class Unreachable(RequestFailed):
    """No answer, or one that allows another try."""


class Rejected(RequestFailed):
    """An answer that another try does not change."""


class Instruction(NamedTuple):
    """Next step of the worker: wait, go, stop or exit."""

    do: str
    grace_s: Optional[float] = None
    stacks: Optional[str] = None
    """Mark of an order to send the stacks of the ranks, beside `do`."""


def worker_path(pod: PodSettings) -> str:
    """The same path as client_lib.spec.paths.worker."""
    return "/api/v1/jobs/%s/attempts/%d/workers/%d" % (quote(pod.job, safe=""), pod.attempt, pod.worker)


def outputs_url(pod: PodSettings) -> Optional[str]:
    """URL at which the server takes this worker's outputs; None: there is no server."""
    return None if pod.server_url is None else pod.server_url.rstrip("/") + worker_path(pod) + "/outputs"


class ServerConnection:
    """One connection to the server, opened again when it is lost."""

    def __init__(self, url: str, ca_file: Optional[str], headers: Mapping[str, str]) -> None:
        """`headers` are sent with each request."""
        parts = urlsplit(url)
        self._address = (parts.hostname or "", parts.port)
        self._tls = ssl.create_default_context(cafile=ca_file) if parts.scheme == "https" else None
        self._base = parts.path.rstrip("/")
        self._headers = {**headers, "X-Worker-Protocol": PROTOCOL}
        self._connection: Optional[http.client.HTTPConnection] = None
        self._kept = False  # the connection has carried an answer

    def close(self) -> None:
        self._kept = False
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def exchange(self, method: str, path: str, body: Body, read: Callable[[Any], T], wait_s: float = 0.0) -> T:
        """Send the request; returns the result of `read` for the JSON of the answer, which may take `wait_s` longer
        than usual. Raises Unreachable, Rejected."""
        answer = self.call(method, path, body, wait_s)
        try:
            return read(json.loads(answer.read()))
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
            self.close()
            raise Unreachable("what answered %s is not this server: %r" % (path.partition("?")[0], error)) from error

    def call(
        self, method: str, path: str, body: Optional[Body] = None, wait_s: float = 0.0
    ) -> http.client.HTTPResponse:
        """The answer, its body unread. Tried again on a new connection if a kept one was closed by the server."""
        try:
            try:
                answer = self._once(method, path, body, wait_s)
            except ConnectionError:
                if not self._kept:
                    raise
                self.close()
                if body is not None and not isinstance(body, bytes):
                    body.seek(0)
                answer = self._once(method, path, body, wait_s)
            self._kept = True
            return self._checked(answer)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise Unreachable("%s: %s" % (type(error).__name__, error)) from error

    def _once(self, method: str, path: str, body: Optional[Body], wait_s: float) -> http.client.HTTPResponse:
        connection = self._connected()
        connection.sock.settimeout(_ANSWER_S + wait_s)
        headers = dict(self._headers)
        if body is not None:
            size = len(body) if isinstance(body, bytes) else os.fstat(body.fileno()).st_size
            headers["Content-Length"] = str(size)
        connection.request(method, self._base + path, body=body, headers=headers)
        return connection.getresponse()

    def _connected(self) -> http.client.HTTPConnection:
        """The open connection, or a new one: http.client closes it after an answer with `Connection: close`, which a
        server gives while it ends."""
        if self._connection is None or self._connection.sock is None:
            self._kept = False
            self._connection = self._new_connection()
            self._connection.connect()
        return self._connection

    def _new_connection(self) -> http.client.HTTPConnection:
        host, port = self._address
        if self._tls is not None:
            return http.client.HTTPSConnection(host, port, timeout=_CONNECT_S, context=self._tls)
        return http.client.HTTPConnection(host, port, timeout=_CONNECT_S)

    def _checked(self, answer: http.client.HTTPResponse) -> http.client.HTTPResponse:
        if answer.status < 300:
            return answer
        text = answer.read(65536)
        self.close()
        if 400 <= answer.status < 500 and answer.status not in (408, 425, 429):
            raise Rejected(_message(text, answer.status), answer.status)
        raise Unreachable(_message(text, answer.status), answer.status)


class ServerClient(ServerConnection):
    """The requests of a pod. Each may be repeated, and raises Unreachable or Rejected."""

    def __init__(self, pod: PodSettings, token: str, ca_file: Optional[str]) -> None:
        assert pod.server_url is not None
        headers = {
            "Authorization": "Bearer " + token,
            "X-Pod-Uid": pod.uid,
            "X-Pod-Name": pod.name,
            "X-Pod-Start": pod.start,
        }
        super().__init__(pod.server_url.rstrip("/") + worker_path(pod), ca_file, headers)

    def put_state(
        self,
        state: str,
        signs_of_life: int,
        known: str,
        wait_s: float,
        stacks: str = "",
        quiet: Optional[Mapping[str, float]] = None,
    ) -> Instruction:
        """Send the worker's state. Returns its instruction as soon as that is not `known`, or orders other stacks than
        those with the mark `stacks`; at the latest after `wait_s`."""
        says = {"state": state, "signs_of_life": signs_of_life, "stacks": stacks, "quiet": quiet or {}}
        body = json.dumps(says).encode()
        query = {"knows": known, "wait": "%g" % wait_s}
        return self._put("/state?" + urlencode(query), body, _instruction, wait_s)

    def put_log(self, offset: int, records: bytes, gap: bool) -> Tuple[int, int]:
        """(length, durable) of the log that the server has stored."""
        query = {"offset": str(offset)}
        if gap:
            query["gap"] = "1"
        return self._put("/log?" + urlencode(query), records, lambda lengths: _numbers(lengths, "length", "durable"))

    def log_end(self) -> Tuple[int, int]:
        """(offset, seq) of the record that the server expects next."""
        return self._put("/log?offset=0", b"", lambda lengths: _numbers(lengths, "length", "next_seq"))

    def put_report(self, report: Mapping[str, Any]) -> None:
        self._put("/report", json.dumps(report).encode(), lambda _: None)

    def put_stacks(self, mark: str, processes: List[Any]) -> None:
        self._put("/stacks", json.dumps({"mark": mark, "processes": processes}).encode(), lambda _: None)

    def put_result(self, path: str) -> None:
        """The file of one rank, named by its number."""
        with open(path, "rb") as file:
            self._put("/results/" + os.path.basename(path), file, lambda _: None)

    def fetch(self, what: str, target: str, check_stop: Callable[[], None]) -> None:
        """Write the snapshot or the function (`what`) to a file. `check_stop` is called for each block; an exception
        that it raises ends the transfer. Raises OSError if the disk is full."""
        answer = self.call("GET", "/" + what)
        try:
            with open(target, "wb") as file:
                while True:
                    check_stop()
                    block = answer.read(_BLOCK)
                    if not block:
                        break
                    file.write(block)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            if isinstance(error, OSError) and is_full(error):
                os.unlink(target)
                raise
            raise Unreachable("the %s was cut off: %s" % (what, error)) from error

    def _put(self, path: str, body: Body, read: Callable[[Any], T], wait_s: float = 0.0) -> T:
        return self.exchange("PUT", path, body, read, wait_s)


def _instruction(answer: Any) -> Instruction:
    do, grace_s = str(answer["do"]), answer.get("grace_s")
    return Instruction(do, None if grace_s is None else float(grace_s), answer.get("stacks"))


def _numbers(answer: Any, first: str, second: str) -> Tuple[int, int]:
    return int(answer[first]), int(answer[second])


def _message(body: bytes, status: int) -> str:
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return "HTTP status %d" % status
