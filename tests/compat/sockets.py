"""Small HTTP servers between a client and golden files: a recorder in front of a real server, and
an old server that has nothing but its recorded answers.
"""

from __future__ import annotations

import http.client
import json
import re
import threading
from abc import ABC, abstractmethod
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from typing_extensions import Self  # of the standard library from Python 3.11 on

from client_lib.spec import paths
from tests.compat.golden import (
    ANSWER_HEADERS,
    REQUEST_HEADERS,
    Answer,
    Exchange,
    Happening,
    Request,
    Step,
    body_of,
    bytes_of,
)

_DIGEST = re.compile(r"[0-9a-f]{64}")
_OF_ONE_CONNECTION = {"connection", "transfer-encoding", "content-length", "date", "server"}


class Sent(NamedTuple):
    """A message as it travels."""

    status: int
    headers: dict[str, str]
    body: bytes


class SocketServer(ABC):
    """Answers each request of a real socket by `respond`."""

    def __init__(self) -> None:
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    @abstractmethod
    def respond(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Sent: ...


def _handler(server: SocketServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # 40 ms for each answer whose head is sent before its body

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            answer = server.respond(self.command, self.path, dict(self.headers), body)
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        do_GET = do_POST = do_DELETE = do_HEAD = do_PUT = _serve

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    return Handler


class Recorder(SocketServer):
    """Passes everything on to a server, and notes it."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.steps: list[Step] = []
        self._server = urlsplit(url)

    def respond(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Sent:
        connection = http.client.HTTPConnection(str(self._server.netloc), timeout=30)
        connection.request(method, target, body or None, headers)
        got = connection.getresponse()
        answer = Sent(got.status, _told(dict(got.headers)), got.read())
        connection.close()
        self.steps.append(Exchange(_request(method, target, headers, body), _answer(answer)))
        return answer


class OldServer(SocketServer):
    """Answers with recorded answers. A request with a path, a parameter or a field that no recorded
    request has gets the error that the old server would have sent.
    """

    def __init__(self, steps: list[Step]) -> None:
        super().__init__()
        self._left = list(steps)
        self._scene: list[Exchange] = []
        self._answered: list[Exchange] = []
        self._begin_scene()

    def happens(self, *words: str) -> None:
        """Go on to the answers that were recorded after this happening."""
        step = self._left.pop(0) if self._left else None
        assert step == Happening(words), f"the next step is recorded as {step}, not {words}"
        self._begin_scene()

    def respond(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Sent:
        asked = _request(method, target, headers, body)
        known = self._known(asked)
        if not known:
            message = f"{paths.NO_SUCH_PATH} {asked.path}"
            return _refusal(404, "not_found", message)
        found = next((each for each in known if _names(asked) <= _names(each.request)), None)
        if found is None:
            new = min(_names(asked) - _names(known[0].request))
            return _refusal(422, "invalid_request", f"{new}: unknown field or parameter")
        self._use(found)
        answer = found.answer
        return Sent(answer.status, answer.headers, bytes_of(answer.body))

    def _begin_scene(self) -> None:
        self._scene = []
        while self._left and isinstance(step := self._left[0], Exchange):
            self._scene.append(step)
            del self._left[0]

    def _known(self, asked: Request) -> list[Exchange]:
        """The exchanges of this path: first the next ones, then the past ones, newest first. A
        client may repeat a request more often than the recorded client did.
        """
        every = [*self._scene, *reversed(self._answered)]
        return [each for each in every if _key(each.request) == _key(asked)]

    def _use(self, found: Exchange) -> None:
        if found in self._scene:
            self._scene.remove(found)
            self._answered.append(found)


def _key(request: Request) -> tuple[str, str]:
    return request.method, _DIGEST.sub("*", request.path)


def _names(request: Request) -> set[str]:
    """The names that a server must know to accept the request."""
    return set(request.query) | set(_fields(request.body.get("json")))


def _fields(value: Any, of: str = "") -> list[str]:
    if not isinstance(value, dict):
        return []
    own = [f"{of}{name}" for name in value]
    return own + [inner for name in value for inner in _fields(value[name], f"{of}{name}.")]


def _request(method: str, target: str, headers: dict[str, str], body: bytes) -> Request:
    parts = urlsplit(target)
    kept = {name: headers[name] for name in REQUEST_HEADERS if name in headers}
    query = parse_qs(parts.query, keep_blank_values=True)
    return Request(method, parts.path, query, kept, body_of(body, headers))


def _answer(sent: Sent) -> Answer:
    headers = {name: value for name, value in _titled(sent.headers) if name in ANSWER_HEADERS}
    return Answer(sent.status, headers, body_of(sent.body, headers))


def _titled(headers: dict[str, str]) -> list[tuple[str, str]]:
    return [(name.title(), value) for name, value in headers.items()]


def _told(headers: dict[str, str]) -> dict[str, str]:
    return {name: headers[name] for name in headers if name.lower() not in _OF_ONE_CONNECTION}


def _refusal(status: int, code: str, message: str) -> Sent:
    body = json.dumps({"code": code, "message": message}).encode()
    return Sent(status, {"Content-Type": "application/json"}, body)
