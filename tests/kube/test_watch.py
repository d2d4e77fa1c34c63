"""A watch against an HTTP server that does what API servers do: ends, breaks
off, expires, says nothing.
"""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from kubernetes import client

from server_stub.runtimes.kube import api as watching
from server_stub.runtimes.kube.api import Api, ApiError, ObjectWatch
from tests.kit.bounds import Bounds
from tests.kit.waiting import until

PATIENCE_S = 30.0


class Cluster:
    """Answers each list and each watch with what the test says; keeps what it was asked."""

    def __init__(self) -> None:
        self.lists: list[dict[str, str]] = []
        self.watches: list[dict[str, str]] = []
        self.version = "10"
        self.names = ["a", "b"]
        self.pages: list[object] = []
        """Answers to the first lists, instead of lists."""
        self.answer: Callable[[BaseHTTPRequestHandler, int], object] = lambda handler, number: None

    def take(self, handler: BaseHTTPRequestHandler) -> None:
        query = {key: value[0] for key, value in parse_qs(urlsplit(handler.path).query).items()}
        if query.get("watch"):
            self.watches.append(query)
            handler.send_response(200)
            handler.send_header("Transfer-Encoding", "chunked")
            handler.end_headers()
            self.answer(handler, len(self.watches))
            handler.wfile.write(b"0\r\n\r\n")
            return
        self.lists.append(query)
        begin, limit = int(query.get("continue", 0)), min(int(query["limit"]), 2)
        page = [named(name, "1") for name in self.names[begin : begin + limit]]
        rest = {"continue": str(begin + limit)} if begin + limit < len(self.names) else {}
        found: object = {"items": page, "metadata": {"resourceVersion": self.version} | rest}
        body = json.dumps(self.pages.pop(0) if self.pages else found).encode()
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)


def named(name: str, version: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": version}}


def send(handler: BaseHTTPRequestHandler, kind: str, found: dict[str, Any]) -> None:
    line = json.dumps({"type": kind, "object": found}).encode() + b"\n"
    handler.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def api(cluster: Cluster) -> Iterator[Api]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            try:
                cluster.take(self)
            except OSError:
                pass  # the watch was stopped

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    configuration = client.Configuration()
    configuration.host = f"http://127.0.0.1:{server.server_address[1]}"
    yield Api(configuration)
    server.shutdown()
    server.server_close()


Got = list[tuple[str, Any]]


@pytest.fixture
def watch(api: Api) -> Iterator[tuple[ObjectWatch[Any], Got]]:
    """A watch on a running event loop, and what it brought there; objects
    called `foreign` do not matter.
    """
    got: Got = []
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    def read(found: Any) -> Any:
        return None if found["metadata"]["name"] == "foreign" else found

    def take(what: str) -> Callable[[Any], None]:
        return lambda found: got.append((what, found))

    async def make() -> ObjectWatch[Any]:
        return ObjectWatch(
            api, "/things", {"labelSelector": "x"}, read, take("list"), take("put"), take("gone")
        )

    made = asyncio.run_coroutine_threadsafe(make(), loop).result()
    yield made, got
    made.stop()
    loop.call_soon_threadsafe(loop.stop)


def test_it_lists_page_by_page_and_then_follows_from_there(cluster: Cluster, watch: Any) -> None:
    cluster.names = ["a", "b", "c", "foreign", "e"]
    stay = threading.Event()

    def answer(handler: BaseHTTPRequestHandler, number: int) -> None:
        send(handler, "ADDED", named("f", "11"))
        send(handler, "MODIFIED", named("foreign", "11"))
        send(handler, "DELETED", named("a", "12"))
        stay.wait(PATIENCE_S)

    cluster.answer = answer
    watch[0].start()
    until(lambda: len(watch[1]) >= 3)
    stay.set()
    listed, added, deleted = watch[1][:3]
    assert [each["metadata"]["name"] for each in listed[1]] == ["a", "b", "c", "e"]
    assert (added, deleted) == (("put", named("f", "11")), ("gone", named("a", "12")))
    assert len(cluster.lists) == 3
    assert cluster.watches[0] == {
        "labelSelector": "x",
        "watch": "true",
        "allowWatchBookmarks": "true",
        "timeoutSeconds": str(watching.WATCH_S),
        "resourceVersion": "10",
    }


def test_it_outlasts_answers_that_are_no_lists(
    cluster: Cluster, watch: Any, bounds: Bounds
) -> None:
    bounds(watching, FIRST_PAUSE_S=0.01, LONGEST_PAUSE_S=0.01)
    cluster.pages = [{}, {"message": "maintenance"}, [], None, {"metadata": None}]
    watch[0].start()
    until(lambda: watch[1])
    assert [each["metadata"]["name"] for each in watch[1][0][1]] == ["a", "b"]


def test_it_goes_on_where_it_was_when_a_watch_ends(cluster: Cluster, watch: Any) -> None:
    def answer(handler: BaseHTTPRequestHandler, number: int) -> None:
        if number == 1:
            send(handler, "MODIFIED", named("a", "15"))
        elif number == 2:
            send(handler, "BOOKMARK", named("", "20"))
        else:
            time.sleep(0.2)

    cluster.answer = answer
    watch[0].start()
    until(lambda: len(cluster.watches) >= 3)
    assert [each["resourceVersion"] for each in cluster.watches[:3]] == ["10", "15", "20"]
    assert len(cluster.lists) == 1
    assert [what for what, _ in watch[1]] == ["list", "put"]


def test_after_an_expired_version_it_lists_again_with_a_pause(
    cluster: Cluster, watch: Any, bounds: Bounds
) -> None:
    bounds(watching, FIRST_PAUSE_S=0.1)
    gone = {"code": 410, "message": "too old resource version", "metadata": {}}
    cluster.answer = lambda handler, number: send(handler, "ERROR", gone)
    began = time.monotonic()
    watch[0].start()
    until(lambda: len(cluster.lists) >= 3)
    assert time.monotonic() - began > 0.2  # two pauses
    assert len(cluster.watches) <= 3


def test_watches_that_end_at_once_are_not_asked_for_in_a_loop(
    cluster: Cluster, watch: Any, bounds: Bounds
) -> None:
    bounds(watching, FIRST_PAUSE_S=0.1)
    watch[0].start()
    until(lambda: len(cluster.watches) >= 1)
    time.sleep(0.2)
    assert len(cluster.watches) < 5


def test_a_connection_that_says_nothing_is_given_up(
    cluster: Cluster, watch: Any, bounds: Bounds
) -> None:
    bounds(watching, SILENCE_S=0.3)
    stay = threading.Event()
    cluster.answer = lambda handler, number: stay.wait(PATIENCE_S)
    watch[0].start()
    until(lambda: len(cluster.watches) >= 2)
    stay.set()
    assert len(cluster.lists) == 1


def test_stopping_does_not_wait_for_a_silent_connection(cluster: Cluster, watch: Any) -> None:
    stay = threading.Event()
    cluster.answer = lambda handler, number: stay.wait(PATIENCE_S)
    watch[0].start()
    until(lambda: cluster.watches)
    watch[0].stop()
    until(lambda: "watch things" not in {thread.name for thread in threading.enumerate()})
    stay.set()


def test_an_api_server_that_is_away_is_an_error_without_a_status() -> None:
    configuration = client.Configuration()
    configuration.host = "http://127.0.0.1:1"
    with pytest.raises(ApiError, match="does not answer") as error:
        Api(configuration).get("/version")
    assert error.value.status == 0
