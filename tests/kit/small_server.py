"""A real HTTP server that gives prepared answers and keeps the requests that it got."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from client_lib.spec.states import Reason, State
from client_lib.spec.wire import JobInfo


class SmallServer:
    """Answers about the jobs in `jobs`. `answers[method, path]` replaces the answer to one request,
    and `every_answer` the answers to all requests."""

    def __init__(self) -> None:
        self.jobs: dict[str, JobInfo] = {}
        self.answers: dict[tuple[str, str], tuple[int, Any]] = {}
        self.every_answer: tuple[int, Any] | None = None
        self.asked: list[tuple[str, str]] = []
        self.bodies: list[bytes] = []
        """Bodies of the requests in `asked`, in the same order."""
        self.tokens: list[str | None] = []
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )

    def __enter__(self) -> SmallServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    def add(self, *jobs: JobInfo) -> None:
        """Add jobs, the newest last."""
        self.jobs.update({info.name: info for info in jobs})

    def answer(self, method: str, target: str) -> tuple[int, Any]:
        if self.every_answer:
            return self.every_answer
        parts = urlsplit(target)
        if (method, parts.path) in self.answers:
            return self.answers[method, parts.path]
        query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        _, _, rest = parts.path.partition("/api/v1/jobs")
        if method == "GET" and parts.path == "/api/v1/jobs":
            return 200, self._page(query)
        name, _, action = rest.strip("/").partition("/")
        if name not in self.jobs:
            return 404, {
                "code": "not_found",
                "message": f"no job named {name}",
                "hint": "look at the list",
            }
        if method == "DELETE":
            del self.jobs[name]
            return 200, {"message": f"{name} deleted"}
        if action == "cancel":
            self.jobs[name] = self.jobs[name].model_copy(
                update={"state": State.CANCELLED, "reason": Reason.CANCELLED}
            )
        return 200, self.jobs[name].model_dump(mode="json")

    def _page(self, query: dict[str, str]) -> dict[str, Any]:
        found = [
            info
            for info in reversed(self.jobs.values())
            if info.name.startswith(query.get("name", ""))
        ]
        found = [info for info in found if info.state == query.get("state", info.state)]
        start, limit = int(query.get("cursor", 0)), int(query.get("limit", 100))
        more = str(start + limit) if start + limit < len(found) else None
        return {
            "jobs": [info.model_dump(mode="json") for info in found[start : start + limit]],
            "next_cursor": more,
        }

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _serve(self) -> None:
                sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                server.bodies.append(sent)
                server.asked.append((self.command, self.path))
                server.tokens.append(self.headers.get("Authorization"))
                status, answer = server.answer(self.command, self.path)
                body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                if not isinstance(answer, bytes):
                    self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_DELETE = do_HEAD = do_PUT = _serve

            def log_message(self, *_: object) -> None:
                """Tests read the process' output, not the server's."""

        return Handler
