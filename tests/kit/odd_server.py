"""An HTTP server that sends what a test scripts, right or wrong."""

import socketserver
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest


class Request(NamedTuple):
    line: str
    headers: dict[str, str]
    body: bytes


@dataclass
class OddServer:
    """Sends the scripted bytes, one item per connection (the last again and again), and
    remembers what it was asked.
    """

    url: str
    answers: list[bytes]
    requests: list[Request] = field(default_factory=list)


def http(
    status: str, body: bytes = b"", content_type: str = "application/json", **headers: str
) -> bytes:
    """A whole answer, as a server that closes the connection sends it."""
    lines = [
        f"HTTP/1.1 {status}",
        f"Content-Type: {content_type}",
        f"Content-Length: {len(body)}",
        "Connection: close",
    ]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@pytest.fixture
def odd_server() -> Iterator[Callable[..., OddServer]]:
    running = []

    def start(*answers: bytes) -> OddServer:
        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                line = self.rfile.readline().decode().strip()
                headers = dict(pair.split(": ", 1) for pair in self._header_lines())
                body = self.rfile.read(int(headers.get("Content-Length", 0)))
                odd.requests.append(Request(line, headers, body))
                self.wfile.write(odd.answers[0] if len(odd.answers) == 1 else odd.answers.pop(0))

            def _header_lines(self) -> Iterator[str]:
                while line := self.rfile.readline().decode().strip():
                    yield line

        server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        odd = OddServer(f"http://127.0.0.1:{server.server_address[1]}", list(answers))
        threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        ).start()
        running.append(server)
        return odd

    yield start
    for server in running:
        server.shutdown()
        server.server_close()
