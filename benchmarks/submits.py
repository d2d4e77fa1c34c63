"""Durable submits: ours beside a bare ASGI app (the floor) and the textbook stack, with 1, 8 and 32
keep-alive clients.

    python benchmarks/submits.py [-n ROUNDS] [-s SECONDS]

Ours is the real server with its local runtime on SQLite: auth, idempotency, a proof of the shared
folder, events, synchronous FULL. One long job holds the only place, so that the others wait and
nothing else runs. The load is a process of its own: raw sockets, each with one request on its way.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from interleave import percentile

from tests.kit.processes import free_port

HERE = Path(__file__).resolve().parent
CLIENTS = (1, 8, 32)
RATE_GOAL, P99_GOAL = 1.5, 0.25  # to the textbook server; the second with the most clients


class Server(NamedTuple):
    port: int
    token: str


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-n", "--rounds", type=int, default=3)
    parser.add_argument("-s", "--seconds", type=float, default=2.0)
    parser.add_argument(
        "--load", nargs=3, metavar=("PORT", "CLIENTS", "TOKEN"), help=argparse.SUPPRESS
    )
    arguments = parser.parse_args()
    if arguments.load:
        port, clients, token = arguments.load
        print(
            json.dumps(
                _send(int(port), int(clients), token, arguments.seconds, sys.stdin.buffer.read())
            )
        )
        return
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    ways: dict[str, Callable[[Path], contextlib.AbstractContextManager[Server]]] = {
        "floor": lambda folder: asgi("submits_floor", folder),
        "textbook": lambda folder: asgi("submits_textbook", folder),
        "ours": _ours,
    }
    samples: dict[tuple[str, int], list[dict[str, float]]] = {}
    for _ in range(arguments.rounds):
        for name, way in ways.items():
            with tempfile.TemporaryDirectory() as scratch, way(Path(scratch)) as server:
                body = _body(Path(scratch))
                _load(server, body, 8, 0.3)
                for clients in CLIENTS:
                    samples.setdefault((name, clients), []).append(
                        _load(server, body, clients, arguments.seconds)
                    )
    _report(samples)


def _report(samples: dict[tuple[str, int], list[dict[str, float]]]) -> None:
    def median(name: str, clients: int, figure: str) -> float:
        return statistics.median(sample[figure] for sample in samples[name, clients])

    rounds = len(next(iter(samples.values())))
    print(f"\nDurable submits ({rounds} rounds)\n")
    print(
        "| way | "
        + " | ".join(f"{n} clients: requests/s, p50 / p99 ms" for n in CLIENTS)
        + " |\n|---|---|---|---|"
    )
    for name in ("floor", "textbook", "ours"):
        figures = [
            [median(name, n, figure) for figure in ("rate", "p50_ms", "p99_ms")] for n in CLIENTS
        ]
        cells = " | ".join(f"{rate:.0f}, {p50:.2f} / {p99:.2f}" for rate, p50, p99 in figures)
        print(f"| {name} | {cells} |")
    for rival in ("floor", "textbook"):
        ratios = [median("ours", n, "rate") / median(rival, n, "rate") for n in CLIENTS]
        print(f"| ours to {rival} | " + " | ".join(f"{ratio:.2f}" for ratio in ratios) + " |")
    p99 = median("ours", CLIENTS[-1], "p99_ms") / median("textbook", CLIENTS[-1], "p99_ms")
    print(
        f"\nGoals beside the textbook: {RATE_GOAL} x its rate; {P99_GOAL} x its p99 with "
        f"{CLIENTS[-1]}: {p99:.2f}"
    )


def _load(server: Server, body: bytes, clients: int, seconds: float) -> dict[str, float]:
    command = [
        sys.executable,
        __file__,
        "-s",
        str(seconds),
        "--load",
        str(server.port),
        str(clients),
        server.token,
    ]
    done = subprocess.run(command, input=body, capture_output=True)
    if done.returncode:
        raise RuntimeError(done.stderr.decode())
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


class Connection:
    """One client: sends the next request when the last one is answered."""

    def __init__(self, port: int, token: str, body: bytes) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._head = (
            f"POST /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nIdempotency-Key: "
        ).encode()
        self._body = body
        self._answer = b""
        self._sent_at = 0.0

    def send(self) -> None:
        self._answer = b""
        self._sent_at = time.perf_counter()
        self.socket.sendall(self._head + uuid.uuid4().hex.encode() + b"\r\n\r\n" + self._body)

    def receive(self) -> float | None:
        """Seconds that the request took; None: the answer is not complete."""
        chunk = self.socket.recv(65536)
        if not chunk:
            raise ConnectionError("the server closed the connection")
        self._answer += chunk
        head, end, body = self._answer.partition(b"\r\n\r\n")
        if not end:
            return None
        lengths = [
            line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")
        ]
        if len(body) < int(lengths[0].split(b":")[1]):
            return None
        if not head.startswith(b"HTTP/1.1 201"):
            raise RuntimeError(self._answer.decode())
        return time.perf_counter() - self._sent_at


def _send(port: int, clients: int, token: str, seconds: float, body: bytes) -> dict[str, float]:
    """Requests per second, p50 and p99 in milliseconds."""
    times: list[float] = []
    with selectors.DefaultSelector() as selector:
        for _ in range(clients):
            connection = Connection(port, token, body)
            selector.register(connection.socket, selectors.EVENT_READ, connection)
            connection.send()
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            for key, _ in selector.select(1):
                took = key.data.receive()
                if took is not None:
                    times.append(took)
                    key.data.send()
    return {
        "rate": len(times) / seconds,
        "p50_ms": percentile(times, 50) * 1e3,
        "p99_ms": percentile(times, 99) * 1e3,
    }


def _body(folder: Path, **fields: Any) -> bytes:
    """What the SDK sends from an ordinary shell: a spec with a few fields, a
    proof, an environment of 2 kB.
    """
    nonce = secrets.token_hex(16)
    (folder / "train.py").write_text("print('hello')\n")
    (folder / ".proof").write_text(nonce)
    spec: dict[str, Any] = {
        "script": str(folder / "train.py"),
        "args": ["--epochs", "3"],
        "env_variables": {"NCCL_DEBUG": "INFO"},
        "instance_type": "cpu.1C.1G",
        "labels": {"team": "vision"},
    }
    environment = {f"VARIABLE_{number}": "x" * 60 for number in range(28)}
    order = {
        "spec": spec | fields,
        "code": {"mode": "in_place", "proof": {"path": str(folder / ".proof"), "nonce": nonce}},
        "submitter": {
            "python": sys.executable,
            "working_dir": str(folder),
            "environment": {**environment, "PATH": os.environ["PATH"]},
        },
    }
    return json.dumps(order).encode()


@contextlib.contextmanager
def asgi(module: str, folder: Path) -> Iterator[Server]:
    """A module of `rivals`, run by uvicorn as our server is."""
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "uvicorn",
        f"rivals.{module}:app",
        "--port",
        str(port),
        "--no-access-log",
    ]
    environment = {**os.environ, "SUBMITS_DB": str(folder / "rival.db")}
    with _running([*command, "--log-level", "error"], environment, HERE):
        _until(lambda: _listens(port))
        yield Server(port, "-")


@contextlib.contextmanager
def _ours(folder: Path) -> Iterator[Server]:
    state = folder / "state"
    environment = {
        **os.environ,
        "CLIENT_LIB_SERVER_MAX_CPU_JOBS": "1",
        "CLIENT_LIB_SERVER_LOG_LEVEL": "warning",
    }
    with _running(
        [sys.executable, "-m", "server_stub", "--state-dir", str(state)], environment, HERE.parent
    ):
        told = state / "server.json"
        _until(told.exists)
        port = int(json.loads(told.read_text())["url"].rsplit(":", 1)[1].strip("/"))
        server = Server(port, (state / "token").read_text().strip())
        _ask(
            server,
            "/api/v1/jobs",
            _body(folder, script="sleep 600", type="binary", args=[], name="holder"),
        )
        _until(lambda: _holds(server))
        yield server
        if not _holds(server):  # then jobs ran, and took more of the machine than the submits
            raise RuntimeError("the job that holds the only place has ended")
        _ask(server, "/api/v1/jobs/holder/cancel", b"")


def _holds(server: Server) -> bool:
    return bool(_ask(server, "/api/v1/jobs/holder")["state"] == "RUNNING")


def _ask(server: Server, path: str, body: bytes | None = None) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {server.token}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}{path}", body, headers)
    with urllib.request.urlopen(request) as answer:
        told: dict[str, Any] = json.load(answer)
    return told


@contextlib.contextmanager
def _running(command: list[str], environment: dict[str, str], folder: Path) -> Iterator[None]:
    quiet = subprocess.DEVNULL
    with subprocess.Popen(
        command, env=environment, cwd=folder, stdin=quiet, stdout=quiet, stderr=quiet
    ) as process:
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError("the server did not start")
        time.sleep(0.02)


if __name__ == "__main__":
    main()
