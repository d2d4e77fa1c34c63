"""The load of `submits.py`, a process of its own: keep-alive raw sockets, each with one request on its way.

    python submits_load.py HOST PORT CLIENTS SECONDS TOKEN < body

Prints one JSON object: requests per second, p50 and p99 in milliseconds.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time
import uuid


class Connection:
    """One client: sends the next request when the last one is answered."""

    def __init__(self, address: tuple[str, int], token: str, body: bytes) -> None:
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._head = (
            f"POST /api/v1/jobs HTTP/1.1\r\nHost: {address[0]}\r\nAuthorization: Bearer {token}\r\n"
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
        lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        if len(body) < int(lengths[0].split(b":")[1]):
            return None
        if not head.startswith(b"HTTP/1.1 201"):
            raise RuntimeError(self._answer.decode())
        return time.perf_counter() - self._sent_at


def main() -> None:
    host, port, clients, seconds, token = sys.argv[1:]
    body = sys.stdin.buffer.read()
    connections = [Connection((host, int(port)), token, body) for _ in range(int(clients))]
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            selector.register(connection.socket, selectors.EVENT_READ, connection)
            connection.send()
        times = _run(selector, float(seconds))
    times.sort()
    p50, p99 = times[len(times) // 2], times[len(times) * 99 // 100]
    print(json.dumps({"rate": len(times) / float(seconds), "p50_ms": p50 * 1e3, "p99_ms": p99 * 1e3}))


def _run(selector: selectors.BaseSelector, seconds: float) -> list[float]:
    times: list[float] = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        for key, _ in selector.select(1):
            took = key.data.receive()
            if took is not None:
                times.append(took)
                key.data.send()
    return times


if __name__ == "__main__":
    main()
