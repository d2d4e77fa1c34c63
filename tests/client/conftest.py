"""A configuration of its own for each test, a server that answers what a test scripts, and one real local server."""

from __future__ import annotations

import os
import signal
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pytest

from client_lib import local_server
from client_lib.client import Client

CLIENT_VARIABLES = ("ENDPOINT", "TOKEN", "PROFILE", "CONFIG", "INSECURE", "CA_BUNDLE", "RETRY_S", "STATE_DIR")


@pytest.fixture(autouse=True)
def _own_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes what belongs to the user who runs it."""
    for name in CLIENT_VARIABLES:
        monkeypatch.delenv(f"CLIENT_LIB_{name}", raising=False)
    monkeypatch.setenv("CLIENT_LIB_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.setenv("CLIENT_LIB_STATE_DIR", str(tmp_path / "state"))


class Request(NamedTuple):
    line: str
    headers: dict[str, str]
    body: bytes


@dataclass
class OddServer:
    """Sends the scripted bytes, one item per connection (the last again and again), and remembers what it was asked."""

    url: str
    answers: list[bytes]
    requests: list[Request] = field(default_factory=list)


def http(status: str, body: bytes = b"", content_type: str = "application/json", **headers: str) -> bytes:
    """A whole answer, as a server that closes the connection sends it."""
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {content_type}", f"Content-Length: {len(body)}", "Connection: close"]
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
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        running.append(server)
        return odd

    yield start
    for server in running:
        server.shutdown()
        server.server_close()


def stop_server(state: Path) -> None:
    running = local_server.find(state)
    if running:
        os.kill(running.pid, signal.SIGKILL)
        until(lambda: local_server.find(state) is None)


def until(condition: Callable[[], bool], within_s: float = 20.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


@pytest.fixture(scope="session")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The state directory of a real server that all tests of this folder share."""
    path = tmp_path_factory.mktemp("server") / "state"
    local_server.find_or_start(path)
    yield path
    stop_server(path)


@pytest.fixture
def client(state: Path, monkeypatch: pytest.MonkeyPatch) -> Client:
    """A client of the real local server, which is also the configured one."""
    monkeypatch.setenv("CLIENT_LIB_STATE_DIR", str(state))
    return Client()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of the user's, and the working directory."""
    path = tmp_path / "project"
    path.mkdir()
    monkeypatch.chdir(path)
    return path
