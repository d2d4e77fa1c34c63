"""Answers of an API server that break off, or contradict each other: what is known of the request,
and what happens when it is repeated."""

import json
import time
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
from kubernetes import client
from kubernetes.config import ConfigException

from server_stub.runtimes.kube.api import Api, ApiError
from server_stub.runtimes.kube.objects_api import BeingDeleted, ObjectsApi
from server_stub.runtimes.kube.pytorchjob import PYTORCHJOB
from tests.kube.cases import CLUSTER, Builder


class Breaking:
    """Keeps the objects that it is sent, or refuses all with `refusal`; the first answer
    to each method breaks off.
    """

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}
        self.refusal: int | None = None
        self.methods: list[str] = []
        self.busy: list[str] = []
        """Values of Retry-After; each refuses one request."""

    def answer(self, handler: BaseHTTPRequestHandler) -> tuple[int, Any]:
        path, name = handler.path.partition("?")[0], ""
        if self.refusal is not None:
            return self.refusal, {"message": "no"}
        if handler.command == "GET":
            name = path.rpartition("/")[2]
            return (
                (200, self.objects[name])
                if name in self.objects
                else (404, {"message": "not found"})
            )
        sent = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        name = sent["metadata"]["name"]
        if name in self.objects:
            return 409, {"message": "exists"}
        self.objects[name] = {
            **sent,
            "metadata": {**sent["metadata"], "uid": f"uid-{len(self.objects)}"},
        }
        return 201, self.objects[name]

    def handle(self, handler: BaseHTTPRequestHandler) -> None:
        pause_s = self.busy.pop(0) if self.busy else None
        status, found = self.answer(handler) if pause_s is None else (429, {"message": "too many"})
        body = found if isinstance(found, bytes) else json.dumps(found).encode()
        breaks_off = handler.command not in self.methods
        self.methods.append(handler.command)
        handler.send_response(status)
        if pause_s:
            handler.send_header("Retry-After", pause_s)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body[:5] if breaks_off else body)


@pytest.fixture
def breaking() -> Iterator[tuple[Breaking, Api]]:
    state = Breaking()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.handle(self)

        def do_POST(self) -> None:
            state.handle(self)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    configuration = client.Configuration()
    configuration.host = f"http://127.0.0.1:{server.server_address[1]}"
    yield state, Api(configuration)
    server.shutdown()
    server.server_close()


def test_a_busy_api_server_is_asked_again_after_the_pause_that_it_asks_for(
    breaking: tuple[Breaking, Api],
) -> None:
    state, api = breaking
    state.methods = ["POST", "GET"]  # no answer breaks off
    state.busy = ["1"]
    before = time.monotonic()
    made = api.create("/things", {"metadata": {"name": "x"}})
    assert time.monotonic() - before >= 1.0
    assert made["metadata"]["uid"] == "uid-0"
    assert len(state.objects) == 1


@pytest.mark.parametrize("pause_s", ["", "3600", "soon", "-1"])
def test_a_busy_api_server_without_a_short_pause_is_an_error_at_once(
    breaking: tuple[Breaking, Api], pause_s: str
) -> None:
    state, api = breaking
    state.methods = ["GET"]
    state.busy = [pause_s]
    with pytest.raises(ApiError, match="too many") as busy:
        api.get("/things/x")
    assert busy.value.status == 429
    assert state.busy == []


def test_a_closed_api_waits_for_no_busy_api_server(breaking: tuple[Breaking, Api]) -> None:
    state, api = breaking
    state.methods = ["GET"]
    state.busy = ["30"]
    api.close()
    with pytest.raises(ApiError, match="too many"):
        api.get("/things/x")


@pytest.mark.parametrize("status", [403, 422, 500])
def test_a_refusal_whose_text_breaks_off_is_still_that_refusal(
    breaking: tuple[Breaking, Api], status: int
) -> None:
    state, api = breaking
    state.refusal = status
    with pytest.raises(ApiError, match=f"HTTP status {status}") as refused:
        api.create("/things", {"metadata": {"name": "x"}})
    assert refused.value.status == status


def test_a_creation_whose_answer_breaks_off_may_be_repeated(breaking: tuple[Breaking, Api]) -> None:
    """It was carried out: the next try finds what the first one made."""
    state, api = breaking
    workload = Builder().build("train").objects().workload
    objects = ObjectsApi(api, CLUSTER.namespace, PYTORCHJOB)
    with pytest.raises(ApiError) as broken:
        objects.create_workload(workload)
    assert broken.value.status == 0
    state.methods.append("GET")
    assert objects.create_workload(workload)["metadata"]["uid"] == "uid-0"
    assert len(state.objects) == 1


def test_the_page_of_a_proxy_is_no_answer(breaking: tuple[Breaking, Api]) -> None:
    """The thread of a watch goes on after it, and a request is repeated."""
    state, api = breaking
    state.methods.append("GET")
    state.objects["x"] = b"<html>Please log in</html>"
    with pytest.raises(
        ApiError, match="does not answer with JSON: b'<html>Please log in"
    ) as failed:
        api.get("/things/x")
    assert failed.value.status == 0


def test_a_token_that_is_away_for_a_moment_is_a_missing_answer() -> None:
    """The file is empty while the kubelet replaces the token of a service account."""

    def read_token(_: client.Configuration) -> None:
        raise ConfigException("Token file exists but empty.")

    configuration = client.Configuration(host="http://127.0.0.1:9")
    configuration.api_key["authorization"] = "Bearer old"
    configuration.refresh_api_key_hook = read_token  # type: ignore[assignment]  # annotated by its first value, None
    with pytest.raises(ApiError, match="can't be renewed: Token file exists") as failed:
        Api(configuration).get("/version")
    assert failed.value.status == 0


@pytest.mark.parametrize(
    ("added", "created", "raised"),
    [(404, 409, BeingDeleted), (409, 409, BeingDeleted), (404, 404, ApiError)],
)
def test_a_launcher_that_many_jobs_change_is_waited_for(
    added: int, created: int, raised: type[Exception]
) -> None:
    """Such a conflict ends no job; a namespace that is missing is told at once."""
    objects = Builder().build("train").objects()
    methods: list[str] = []

    def refuse(method: str, *_: Any, **__: Any) -> Any:
        methods.append(method)
        raise ApiError(added if method == "PATCH" else created, "no")

    api: Any = SimpleNamespace(request=refuse, create=partial(refuse, "POST"))
    workload = {"metadata": {"name": "train", "uid": "u"}}
    *_, share = ObjectsApi(api, CLUSTER.namespace, PYTORCHJOB).creations(objects, workload)
    with pytest.raises(raised):
        share()
    assert methods == ["PATCH", "POST"] * (1 if raised is ApiError else 5)
