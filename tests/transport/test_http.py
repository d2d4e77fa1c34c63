"""Invalid and missing answers of a server: each becomes one of our errors, with the URL and the way
out.

Every test runs over both transports: the SDK's and the command line's.
"""

import json
import os
import signal
import socket
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from client_lib import errors
from client_lib.transport import http_client
from client_lib.transport.api import Api
from client_lib.transport.config import Config, Endpoint
from client_lib.transport.failures import Transient
from client_lib.transport.http import RequestsTransport
from client_lib.transport.rest import Connect, Rest, Upload
from client_lib.version import user_agent
from tests.kit.bounds import Bounds
from tests.kit.odd_server import OddServer, http
from tests.kit.processes import free_port

Start = Callable[..., OddServer]


connect: Connect


@pytest.fixture(
    autouse=True, params=[RequestsTransport, http_client.connect], ids=["requests", "http.client"]
)
def each_transport(request: pytest.FixtureRequest) -> None:
    global connect
    connect = request.param


def rest(
    url: str, token: str | None = "secret", retry_s: float | None = 0.0, **settings: Any
) -> Rest:
    return Rest(
        lambda: Endpoint(url, token), Config(url, token, retry_s=retry_s, **settings), connect
    )


def api(url: str, retry_s: float = 0.0) -> Api:
    return Api(Config(url), rest(url, retry_s=retry_s))


def refused(url: str, **options: float) -> errors.ClientLibError:
    with pytest.raises(errors.ClientLibError) as caught:
        rest(url, **options).call("GET", "/api/v1/info")  # type: ignore[arg-type]
    assert url in caught.value.message
    return caught.value


def test_a_refused_connection_says_how_to_start_a_server() -> None:
    problem = refused(f"http://127.0.0.1:{free_port()}")
    assert isinstance(problem, errors.ServerUnreachable)
    assert "connection refused" in problem.message
    assert "client-lib serve" in (problem.hint or "")


def test_the_address_of_an_ipv6_server_may_have_no_port() -> None:
    assert "name is unknown" not in refused("http://[::1]").message


def test_an_unknown_host_is_not_tried_for_long() -> None:
    begin = time.monotonic()
    with pytest.raises(errors.ServerUnreachable, match="name is unknown"):
        rest("http://no-such-host.invalid", None, retry_s=30).call("GET", "/x")
    assert time.monotonic() - begin < 10


def test_a_server_that_closes_without_an_answer(odd_server: Start) -> None:
    problem = refused(odd_server(b"").url)
    assert isinstance(problem, errors.ServerUnreachable)
    assert "without an answer" in problem.message


def test_a_server_that_says_nothing_at_all() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(errors.ServerUnreachable, match=r"sent nothing for 0\.2 s"):
            rest(url).call("GET", "/x", read_s=0.2)


def test_half_an_answer(odd_server: Start) -> None:
    whole = http("200 OK", b'{"name": "a"}')
    problem = refused(odd_server(whole[:-5]).url)
    assert isinstance(problem, errors.BadResponse)
    assert "in the middle" in problem.message


@pytest.mark.parametrize(
    "body", [b'{"a": 1 < 2}, ' * 100_000, b"[" * 60_000], ids=["many <", "deep"]
)
def test_a_large_foreign_answer_is_told_at_once(odd_server: Start, body: bytes) -> None:
    for status in ("200 OK", "500 No"):
        began = time.monotonic()
        with pytest.raises(errors.BadResponse):
            api(odd_server(http(status, body)).url).server_info()
        assert time.monotonic() - began < 5


def test_half_a_json_in_a_whole_answer(odd_server: Start) -> None:
    with pytest.raises(errors.BadResponse, match="no ServerInfo"):
        api(odd_server(http("200 OK", b'{"version": "1')).url).server_info()


@pytest.mark.parametrize("part", ["spec", "code"])
def test_a_job_with_a_field_of_tomorrow_is_not_run_again_without_it(
    odd_server: Start, part: str
) -> None:
    sent = {"spec": {"script": "train.py"}, "code": {"mode": "in_place"}}
    sent[part]["field_of_tomorrow"] = "a"
    server = odd_server(http("200 OK", json.dumps(sent).encode()))
    with pytest.raises(errors.NotSupported, match="submitted with 'field_of_tomorrow'") as caught:
        api(server.url).job_request("first")
    assert "--upgrade" in str(caught.value)


def test_a_server_is_told_the_version_and_the_commit_of_the_client(odd_server: Start) -> None:
    server = odd_server(http("200 OK", b"{}"))
    rest(server.url).call("GET", "/api/v1/info")
    assert server.requests[0].headers["User-Agent"] == user_agent("client-lib")


def test_something_that_speaks_no_http(odd_server: Start) -> None:
    problem = refused(odd_server(b"SSH-2.0-OpenSSH_9.6\r\n").url)
    assert isinstance(problem, errors.BadResponse)


HTML = b"<html><head><title>t</title></head><body><h1>It works &amp; runs</h1></body></html>"


@pytest.mark.parametrize(
    ("answer", "kind", "says"),
    [
        (
            http("502 Bad Gateway", HTML, "text/html"),
            errors.Unavailable,
            "502 Bad Gateway (It works & runs)",
        ),
        (http("504 Gateway Timeout", b"", "text/html"), errors.Unavailable, "504 Gateway Timeout"),
        (http("404 Not Found", HTML, "text/html"), errors.BadResponse, "no client-lib server"),
        (
            http("404 Not Found", b'{"detail":"Not Found"}'),
            errors.BadResponse,
            "no client-lib server",
        ),
        (http("401 Unauthorized", b"", "text/html"), errors.Unauthorized, "401"),
        (http("403 Forbidden", HTML, "text/html"), errors.Forbidden, "in front of the server"),
        (http("413 Too Large", HTML, "text/html"), errors.TooLarge, "413"),
        (http("429 Slow Down", b""), errors.Unavailable, "too many requests"),
        (http("500 Oops", b"[1, 2]"), errors.BadResponse, "500 Oops"),
        (
            http("302 Found", b"", Location="https://login.example/"),
            errors.BadResponse,
            "https://login.example/",
        ),
    ],
)
def test_foreign_answers_are_told_with_status_and_text(
    odd_server: Start, answer: bytes, kind: type[errors.ClientLibError], says: str
) -> None:
    problem = refused(odd_server(answer).url)
    assert type(problem) is kind
    assert says in problem.message


def test_an_html_page_with_status_200_is_no_answer(odd_server: Start) -> None:
    server = odd_server(http("200 OK", HTML, "text/html"))
    with pytest.raises(errors.BadResponse, match="It works") as caught:
        api(server.url).server_info()
    assert caught.value.message.startswith(f"what {server.url} answers is no ServerInfo")


@pytest.mark.parametrize("code", sorted(set(errors.BY_CODE) - {"unavailable"}))
def test_the_class_of_an_error_survives_http(odd_server: Start, code: str) -> None:
    sent = errors.BY_CODE[code]("what", hint="the way out")
    answer = http(f"{sent.http_status} X", json.dumps(sent.body()).encode())
    with pytest.raises(errors.ClientLibError) as caught:
        rest(odd_server(answer).url).call("GET", "/x")
    assert (type(caught.value), caught.value.message, caught.value.hint) == (
        type(sent),
        "what",
        "the way out",
    )


def test_a_code_of_a_newer_server_falls_back_to_its_status(odd_server: Start) -> None:
    answer = http("409 Conflict", b'{"code": "from_the_future", "message": "m"}')
    with pytest.raises(errors.Conflict, match="m"):
        rest(odd_server(answer).url).call("GET", "/x")


# --- trying again


OK = http("200 OK", b"{}")


@pytest.mark.parametrize(
    "bad", [b"", OK[:-1], http("502 Bad", HTML, "text/html"), http("503 No", b"")]
)
def test_what_may_be_over_soon_is_tried_again(odd_server: Start, bad: bytes) -> None:
    server = odd_server(bad, bad, OK)
    assert rest(server.url, retry_s=20).call("POST", "/x", body=b"body") == b"{}"
    assert [request.body for request in server.requests] == [b"body"] * 3


@pytest.mark.parametrize(
    "bad", [http("404 No", HTML, "text/html"), http("409 C", b'{"code":"conflict","message":"m"}')]
)
def test_a_definite_answer_is_not_tried_again(odd_server: Start, bad: bytes) -> None:
    server = odd_server(bad)
    refused_ = pytest.raises(errors.ClientLibError)
    with refused_:
        rest(server.url, retry_s=20).call("GET", "/x")
    assert len(server.requests) == 1


def test_retry_after_is_honoured(odd_server: Start) -> None:
    begin = time.monotonic()
    rest(odd_server(http("503 Later", b"", Retry_After="0.4"), OK).url, retry_s=20).call(
        "GET", "/x"
    )
    assert 0.4 <= time.monotonic() - begin < 5


def test_a_retry_after_beyond_the_bound_is_not_waited_for(odd_server: Start) -> None:
    begin = time.monotonic()
    with pytest.raises(errors.Unavailable):
        rest(odd_server(http("503 Later", b"", Retry_After="3600")).url, retry_s=5).call(
            "GET", "/x"
        )
    assert time.monotonic() - begin < 4


def test_the_user_s_bound_ends_the_tries_and_the_message_says_how_long() -> None:
    begin = time.monotonic()
    problem = refused(f"http://127.0.0.1:{free_port()}", retry_s=0.5)
    assert time.monotonic() - begin < 3
    assert "tried for 0." in problem.message


def test_an_address_that_has_answered_before_is_tried_for_longer(
    odd_server: Start, bounds: Bounds
) -> None:
    """As in a rollout on a cluster; the tries for an address that may be wrong stay few."""
    bounds("client_lib.transport.config", RETRY_S_DEFAULT=0.0, RESTART_S=20.0)
    away = http("503 No", b"")
    never = odd_server(away)
    with pytest.raises(errors.Unavailable):
        rest(never.url, retry_s=None).call("GET", "/x")
    assert len(never.requests) == 1
    server = odd_server(OK, away, away, OK)
    for _ in range(2):
        assert rest(server.url, retry_s=None).call("GET", "/x") == b"{}"
    assert len(server.requests) == 4


def test_a_delete_whose_answer_was_lost_is_done(odd_server: Start) -> None:
    gone = http("404 Not Found", b'{"code": "not_found", "message": "no job named a"}')
    server = odd_server(b"", gone)
    assert api(server.url, retry_s=20).delete_job("a") == 'Job "a" deleted'
    with pytest.raises(errors.NotFound):
        api(odd_server(gone).url, retry_s=20).delete_job("a")


# --- the token


def test_no_token_travels_over_plain_http_to_another_host() -> None:
    with pytest.raises(errors.InvalidRequest, match=r"plain http to far\.example"):
        rest("http://far.example").call("GET", "/x")
    with pytest.raises(errors.ServerUnreachable):  # without a token there is nothing to lose
        rest("http://far.invalid", None).call("GET", "/x")


def test_insecure_lets_it_travel(odd_server: Start) -> None:
    with pytest.raises(errors.ServerUnreachable):
        rest("http://far.invalid", insecure=True).call("GET", "/x")


@pytest.mark.parametrize("token", ["a\nb", "schlüssel", " a", ""])
def test_a_token_that_no_header_can_carry_is_refused_before_it_is_sent(token: str) -> None:
    if token:
        with pytest.raises(errors.InvalidRequest, match="token"):
            rest("http://127.0.0.1:9", token).call("GET", "/x")


def test_the_token_is_sent_and_a_netrc_does_not_take_its_place(
    odd_server: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password other\n")
    monkeypatch.setenv("NETRC", str(netrc))
    server = odd_server(OK)
    rest(server.url).call("GET", "/x")
    assert server.requests[0].headers["Authorization"] == "Bearer secret"


def test_no_proxy_stands_between_this_machine_and_itself(
    odd_server: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    server = odd_server(OK)
    assert rest(server.url).call("GET", "/x") == b"{}"


def test_a_proxy_is_used_for_other_hosts(
    odd_server: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = odd_server(OK)
    monkeypatch.setenv("http_proxy", proxy.url)
    rest("http://far.invalid", None).call("GET", "/x")
    assert proxy.requests[0].line == "GET http://far.invalid/x HTTP/1.1"


def test_a_proxy_gets_its_user_and_password_and_the_path_of_the_server(
    odd_server: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = odd_server(OK)
    monkeypatch.setenv("http_proxy", proxy.url.replace("http://", "http://ann:pass%20word@"))
    rest("http://far.invalid/team", None).call(
        "GET", "/x", params={"label": ["a=b", "c=d"], "limit": 1}
    )
    assert (
        proxy.requests[0].line
        == "GET http://far.invalid/team/x?label=a%3Db&label=c%3Dd&limit=1 HTTP/1.1"
    )
    assert (
        proxy.requests[0].headers["Proxy-Authorization"]
        == f"Basic {b64encode(b'ann:pass word').decode()}"
    )


def test_a_redirect_is_not_followed_with_the_token(odd_server: Start) -> None:
    thief = odd_server(OK)
    moved = odd_server(http("307 Moved", b"", Location=f"{thief.url}/x"))
    with pytest.raises(errors.BadResponse, match="redirect"):
        rest(moved.url).call("GET", "/x")
    assert thief.requests == []


def test_a_ca_bundle_that_is_not_there_is_named() -> None:
    with pytest.raises(errors.InvalidRequest, match=r"/no/such\.pem"):
        rest("https://127.0.0.1:9", None, ca_bundle="/no/such.pem").call("GET", "/x")


def test_one_of_the_environment_is_named_too_where_it_matters(
    odd_server: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/no/such.pem")
    with pytest.raises(errors.InvalidRequest, match=r"/no/such\.pem"):
        rest("https://127.0.0.1:9", None).call("GET", "/x")
    assert rest(odd_server(OK).url).call("GET", "/x") == b"{}"


def test_a_server_that_speaks_no_tls_is_said_to(odd_server: Start) -> None:
    url = odd_server(OK).url.replace("http:", "https:")
    problem = refused(url)
    assert "TLS" in problem.message
    assert "ca_bundle" in (problem.hint or "")


# --- bodies, and connections that are used again


class Blocks(Upload):
    """An upload of ten blocks."""

    def __init__(self) -> None:
        """Nothing is on the disk."""

    def __iter__(self) -> Iterator[bytes]:
        return iter([b"0123456789" * 10_000] * 10)

    def __len__(self) -> int:
        return 1_000_000


def test_an_upload_sends_its_length_and_each_try_all_of_it(odd_server: Start) -> None:
    server = odd_server(http("503 No", b""), OK)
    rest(server.url, retry_s=20).call(
        "PUT", "/x", body=Blocks(), headers={"Content-Type": "application/gzip"}
    )
    for request in server.requests:
        assert request.headers["Content-Length"] == "1000000"
        assert request.headers["Content-Type"] == "application/gzip"
        assert request.body == b"".join(Blocks())


def test_an_upload_that_is_refused_unread_says_why() -> None:
    refusal = http("413 Too Large", b'{"code": "too_large", "message": "at most 10 bytes"}')
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_refuse_unread, args=(listener, refusal), daemon=True).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(errors.TooLarge, match="at most 10 bytes"):
            rest(url).call("PUT", "/x", body=Blocks())


def _refuse_unread(listener: socket.socket, refusal: bytes) -> None:
    """Answer and read nothing more, as uvicorn does."""
    connection, _ = listener.accept()
    with connection:
        connection.recv(64)
        connection.sendall(refusal)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65536):
            pass


def test_a_stream_gives_the_body_or_says_that_it_broke_off(odd_server: Start) -> None:
    server = odd_server(http("200 OK", b"one two")[:-3])
    with (
        pytest.raises(Transient, match="in the middle"),
        rest(server.url).stream("/x", read_s=5) as answer,
    ):
        list(answer.blocks)
    with rest(odd_server(http("200 OK", b"one two")).url).stream("/x", read_s=5) as answer:
        assert (answer.status, b"".join(answer.blocks)) == (200, b"one two")


def test_head_of_what_is_not_there(odd_server: Start) -> None:
    assert not api(odd_server(http("404 Not Found", b"")).url).has_snapshot("0" * 64)


class _Patient(BaseHTTPRequestHandler):
    """Keeps connections open, but for a path that ends with `last`."""

    protocol_version = "HTTP/1.1"
    ports: list[int]

    def do_GET(self) -> None:
        self.ports.append(self.client_address[1])
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")
        self.close_connection = self.path.endswith("last")

    def log_message(self, *_: object) -> None: ...


def test_a_connection_is_used_again_until_the_server_closes_it() -> None:
    ports: list[int] = []
    handler = type("Handler", (_Patient,), {"ports": ports})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        calls = rest(f"http://127.0.0.1:{server.server_port}", retry_s=20)
        for path in ("/x", "/x", "/last"):
            assert calls.call("GET", path) == b"{}"
        time.sleep(0.1)
        assert calls.call("GET", "/x") == b"{}"
        server.shutdown()
    assert len(set(ports[:3])) == 1
    assert ports[3] != ports[0]


# --- many threads, many processes


def test_many_threads_share_one_client(odd_server: Start) -> None:
    server = odd_server(OK)
    shared = rest(server.url)
    answers: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: answers.append(shared.call("GET", "/x"))) for _ in range(40)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [b"{}"] * 40


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_makes_connections_of_its_own(odd_server: Start) -> None:
    shared = rest(odd_server(OK).url)
    shared.call("GET", "/x")
    mine = shared._connection()
    child = os.fork()
    if child == 0:
        os._exit(0 if shared.call("GET", "/x") == b"{}" and shared._connection() is not mine else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_child_that_is_forked_while_another_thread_connects_does_not_wait_for_that_thread(
    odd_server: Start,
) -> None:
    url, begun, go_on = odd_server(OK).url, threading.Event(), threading.Event()
    parent = os.getpid()

    def locate() -> Endpoint:
        if os.getpid() == parent:
            begun.set()
            go_on.wait()
        return Endpoint(url)

    shared = Rest(locate, Config(url, retry_s=0), connect)
    thread = threading.Thread(target=shared.call, args=("GET", "/x"))
    thread.start()
    begun.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(10)  # ends a child that waits
        os._exit(0 if shared.call("GET", "/x") == b"{}" else 1)
    ended = os.waitpid(child, 0)[1]
    go_on.set()
    thread.join()
    assert ended == 0
