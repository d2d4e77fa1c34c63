"""Which cluster, as whom, and in which namespace: by a kubeconfig, its contexts, or as a pod."""

import json
import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from client_lib.errors import ServerError
from server_stub.runtimes.kube import api
from server_stub.runtimes.kube.api import ApiError, connect, default_namespace
from server_stub.settings import Settings


@pytest.fixture
def asked() -> Iterator[tuple[str, list[str | None]]]:
    """URL of an API server that answers all with its path, and what it was told of who asks."""
    told: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            told.append(self.headers.get("Authorization"))
            refused = self.path == "/refused"
            body = json.dumps(
                {"message": "not for you"} if refused else {"path": self.path}
            ).encode()
            self.send_response(403 if refused else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", told
    server.shutdown()
    server.server_close()


def kubeconfig(folder: Path, server: str = "http://127.0.0.1:1") -> Path:
    """Two contexts: `here` is the current one and says a namespace, `there` says none."""
    contexts = [
        {"name": "here", "context": {"cluster": "one", "user": "me", "namespace": "team"}},
        {"name": "there", "context": {"cluster": "one", "user": "other"}},
    ]
    users = [{"name": name, "user": {"token": f"token-of-{name}"}} for name in ("me", "other")]
    text = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "one", "cluster": {"server": server}}],
        "users": users,
        "contexts": contexts,
        "current-context": "here",
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(text))
    return path


@pytest.mark.parametrize(
    ("context", "user", "namespace"),
    [(None, "me", "team"), ("here", "me", "team"), ("there", "other", "default")],
)
def test_a_context_says_who_asks_and_in_which_namespace(
    tmp_path: Path,
    asked: tuple[str, list[str | None]],
    context: str | None,
    user: str,
    namespace: str,
) -> None:
    server, told = asked
    path = kubeconfig(tmp_path, server)
    assert connect(path, context).get("/version", {"a": 1}) == {"path": "/version?a=1"}
    assert told == [f"Bearer token-of-{user}"]
    assert default_namespace(path, context) == namespace


def test_a_refusal_has_the_words_of_the_api_server(
    tmp_path: Path, asked: tuple[str, list[str | None]]
) -> None:
    with pytest.raises(ApiError, match="not for you") as refused:
        connect(kubeconfig(tmp_path, asked[0]), None).get("/refused")
    assert refused.value.status == 403


@pytest.mark.parametrize(
    ("text", "context"),
    [(None, None), ("", None), ("{", None), ("a: 1", None), ("usual", "nowhere")],
)
def test_what_leads_to_no_cluster_is_named_with_the_way_out(
    tmp_path: Path, text: str | None, context: str | None
) -> None:
    path = kubeconfig(tmp_path)
    if text is None:
        path.unlink()
    elif text != "usual":
        path.write_text(text)
    with pytest.raises(
        ServerError, match=f"no Kubernetes cluster can be reached with {path}: "
    ) as lost:
        connect(path, context)
    told = re.findall(r"CLIENT_LIB_SERVER_(\w+)", lost.value.hint or "")
    assert {name.lower() for name in told} == {
        "kubeconfig",
        "kube_context",
    } & Settings.model_fields.keys()
    assert default_namespace(path, context) in ("default", "team")


def test_in_a_pod_its_own_namespace_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # the folder that Kubernetes mounts in a pod; /var/run is not the test's
    monkeypatch.setattr(api, "_SERVICE_ACCOUNT", tmp_path)
    (tmp_path / "namespace").write_text("of-the-pod\n")
    (tmp_path / "token").write_text("x")
    assert default_namespace(None, None) == "of-the-pod"
    assert default_namespace(kubeconfig(tmp_path), None) == "team"
