"""Durable submits: ours beside a bare ASGI app (the floor) and the textbook stack, with 1, 8 and 32 keep-alive clients.

    python benchmarks/submits.py [-n ROUNDS] [-s SECONDS]

Ours is the real server with its local runtime on SQLite: auth, idempotency, a proof of the shared folder, events,
synchronous FULL. One long job holds the only place, so that the others wait and nothing else runs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.processes import free_port

HERE = Path(__file__).resolve().parent
CLIENTS = (1, 8, 32)
RATE_GOAL, P99_GOAL = 1.5, 0.25  # to the textbook server; the second with the most clients


class Server(NamedTuple):
    port: int
    token: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--rounds", type=int, default=3)
    parser.add_argument("-s", "--seconds", type=float, default=2.0)
    arguments = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    ways: dict[str, Callable[[Path], contextlib.AbstractContextManager[Server]]] = {
        "floor": lambda folder: _asgi("submits_floor", folder),
        "textbook": lambda folder: _asgi("submits_textbook", folder),
        "ours": _ours,
    }
    samples: dict[tuple[str, int], list[dict[str, float]]] = {}
    for _ in range(arguments.rounds):
        for name, way in ways.items():
            with tempfile.TemporaryDirectory() as scratch, way(Path(scratch)) as server:
                body = _body(Path(scratch))
                _load(server, body, 8, 0.3)
                for clients in CLIENTS:
                    samples.setdefault((name, clients), []).append(_load(server, body, clients, arguments.seconds))
    _report(samples)


def _report(samples: dict[tuple[str, int], list[dict[str, float]]]) -> None:
    def median(name: str, clients: int, figure: str) -> float:
        return statistics.median(sample[figure] for sample in samples[name, clients])

    rounds = len(next(iter(samples.values())))
    print(f"\nDurable submits ({rounds} rounds)\n")
    print("| way | " + " | ".join(f"{n} clients: requests/s, p50 / p99 ms" for n in CLIENTS) + " |\n|---|---|---|---|")
    for name in ("floor", "textbook", "ours"):
        figures = [[median(name, n, figure) for figure in ("rate", "p50_ms", "p99_ms")] for n in CLIENTS]
        cells = " | ".join(f"{rate:.0f}, {p50:.2f} / {p99:.2f}" for rate, p50, p99 in figures)
        print(f"| {name} | {cells} |")
    for rival in ("floor", "textbook"):
        ratios = [median("ours", n, "rate") / median(rival, n, "rate") for n in CLIENTS]
        print(f"| ours to {rival} | " + " | ".join(f"{ratio:.2f}" for ratio in ratios) + " |")
    p99 = median("ours", CLIENTS[-1], "p99_ms") / median("textbook", CLIENTS[-1], "p99_ms")
    print(f"\nGoals beside the textbook: {RATE_GOAL} x its rate; {P99_GOAL} x its p99 with {CLIENTS[-1]}: {p99:.2f}")


def _load(server: Server, body: bytes, clients: int, seconds: float) -> dict[str, float]:
    command = [HERE / "submits_load.py", "127.0.0.1", server.port, clients, seconds, server.token]
    done = subprocess.run([sys.executable, *map(str, command)], input=body, capture_output=True)
    if done.returncode:
        raise RuntimeError(done.stderr.decode())
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def _body(folder: Path, **fields: Any) -> bytes:
    """What the SDK sends from an ordinary shell: a spec with a few fields, a proof, an environment of 2 kB."""
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
def _asgi(module: str, folder: Path) -> Iterator[Server]:
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", f"{module}:app", "--port", str(port), "--no-access-log"]
    environment = {**os.environ, "SUBMITS_DB": str(folder / "rival.db")}
    with _running([*command, "--log-level", "error"], environment, HERE):
        _until_listening(port)
        yield Server(port, "")


@contextlib.contextmanager
def _ours(folder: Path) -> Iterator[Server]:
    state = folder / "state"
    environment = {**os.environ, "CLIENT_LIB_SERVER_MAX_CPU_JOBS": "1", "CLIENT_LIB_SERVER_LOG_LEVEL": "warning"}
    with _running([sys.executable, "-m", "server_stub", "--state-dir", str(state)], environment, HERE.parent):
        told = state / "server.json"
        _until(told.exists)
        port = int(json.loads(told.read_text())["url"].rsplit(":", 1)[1].strip("/"))
        server = Server(port, (state / "token").read_text().strip())
        _ask(server, "/api/v1/jobs", _body(folder, script="sleep 600", type="binary", args=[], name="holder"))
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
    with subprocess.Popen(command, env=environment, cwd=folder, stdin=quiet, stdout=quiet, stderr=quiet) as process:
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


def _until_listening(port: int) -> None:
    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    _until(listens)


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError("the server did not start")
        time.sleep(0.02)


if __name__ == "__main__":
    main()
