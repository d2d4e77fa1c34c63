"""Every bound answers clearly, whether the client declares the size or
streams, and the server goes on.
"""

import hashlib
import json
import os
import socket
from collections.abc import Callable, Iterator

import pytest

from client_lib import __version__
from client_lib.spec import paths
from client_lib.version import commit
from server_stub.http.limits import HEAD_MAX
from tests.http.conftest import DEADLINE_S, Api, Running
from tests.kit.bounds import Bounds
from tests.kit.waiting import until

BOUND = 100_000


@pytest.fixture
def small(start_server: Callable[..., Running], bounds: Bounds) -> Running:
    # constants, and large ones
    bounds("server_stub.http.limits", MAX_BODY_BYTES=BOUND)
    bounds("server_stub.service.admission", MAX_SPEC_BYTES=10_000)
    return start_server(max_snapshot_bytes=BOUND)


def pieces(size: int) -> Iterator[bytes]:
    """A body without a Content-Length."""
    for start in range(0, size, 16384):
        yield b"x" * min(16384, size - start)


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("size", [BOUND + 1, 50 * BOUND])
@pytest.mark.parametrize(("method", "path"), [("POST", paths.JOBS), ("POST", paths.RENDER)])
def test_a_body_over_its_bound_is_413(
    method: str, path: str, size: int, chunked: bool, small: Running
) -> None:
    ann = small.as_user("ann")
    answer = ann(method, path, data=pieces(size) if chunked else b"x" * size)
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    assert str(BOUND) in answer.json()["message"]
    assert ann.submit().status_code == 201


@pytest.mark.parametrize("chunked", [False, True])
def test_a_snapshot_over_its_bound_is_413_and_at_it_is_taken(chunked: bool, small: Running) -> None:
    ann = small.as_user("ann")
    over, at = b"x" * (BOUND + 1), b"x" * BOUND
    for data, status in ((over, 413), (at, 201)):
        path = paths.snapshot(hashlib.sha256(data).hexdigest())
        answer = ann("PUT", path, data=pieces(len(data)) if chunked else data)
        assert answer.status_code == status, answer.text
        assert ann("HEAD", path).status_code == (200 if status == 201 else 404)


def test_a_spec_over_its_bound_is_413(small: Running) -> None:
    answer = small.as_user("ann").submit(args=["x" * 20_000])
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    assert "spec" in answer.json()["message"]


def test_a_digest_that_is_none_is_422(small: Running) -> None:
    for method in ("GET", "PUT"):
        answer = small.as_user("ann")(method, f"{paths.SNAPSHOTS}/abc")
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")


@pytest.mark.parametrize("path", ["/api/v1/jobs/a%00b", "/api/v1/jobs?name=%00"])
def test_a_nul_byte_in_the_address_is_refused(path: str, ann: Api) -> None:
    answer = ann("GET", path)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")


def test_too_many_headers_are_refused(ann: Api) -> None:
    answer = ann("GET", paths.INFO, headers={f"X-{number}": "1" for number in range(200)})
    assert answer.status_code == 422
    assert "at most 100" in answer.json()["message"]


@pytest.mark.parametrize(
    "head",
    [b"GET / HTTP/1.1\r\nX: " + b"x" * 10 * HEAD_MAX, b"GET /" + b"x" * 10 * HEAD_MAX],
    ids=["header", "path"],
)
def test_a_head_without_an_end_is_cut(head: bytes, server: Running) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=DEADLINE_S) as connection:
        try:
            connection.sendall(head)
            answer = connection.recv(4096)
        except ConnectionError:  # it closed while we were sending
            answer = b""
    assert not answer or b" 431 " in answer
    assert server.anonymous()("GET", paths.HEALTHZ).ok


def test_many_requests_on_one_connection_are_not_counted_together(ann: Api) -> None:
    padding = {"X-Padding": "x" * 8000}
    assert {ann("GET", paths.INFO, headers=padding).status_code for _ in range(30)} == {200}


@pytest.mark.parametrize(
    "garbage", [b"\x16\x03\x01\x02", b"HELLO\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"]
)
def test_what_is_no_http_gets_a_400_or_nothing(garbage: bytes, server: Running) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=DEADLINE_S) as connection:
        connection.sendall(garbage)
        connection.shutdown(socket.SHUT_WR)
        answer = connection.recv(4096)
    assert not answer or b" 400 " in answer
    assert server.anonymous()("GET", paths.HEALTHZ).ok


def test_a_cut_submit_stores_nothing_and_leaves_no_traceback(
    server: Running, ann: Api, caplog: pytest.LogCaptureFixture
) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    head = (
        f"POST {paths.JOBS} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "
        f"{ann.token}\r\nContent-Length: 100\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), timeout=DEADLINE_S) as connection:
        connection.sendall(head.encode() + b'{"spec": ')
    until(lambda: [line["status"] for line in server.log_lines()] == [499])
    assert "Traceback" not in caplog.text


def test_a_cut_upload_leaves_nothing_and_no_traceback(
    server: Running, ann: Api, caplog: pytest.LogCaptureFixture
) -> None:
    data = os.urandom(100_000)
    path = paths.snapshot(hashlib.sha256(data).hexdigest())
    host, port = server.url.removeprefix("http://").split(":")
    head = (
        f"PUT {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ann.token}\r\nContent-Length: "
        f"{len(data)}\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), timeout=DEADLINE_S) as connection:
        connection.sendall(head.encode() + data[:50_000])
    until(lambda: [line["status"] for line in server.log_lines()] == [499])
    assert "Traceback" not in caplog.text
    assert ann("HEAD", path).status_code == 404
    assert not list((server.settings.data_dir / "snapshots" / "incoming").iterdir())


def test_unknown_paths_and_methods_are_answered_in_our_words(ann: Api) -> None:
    missing = ann("GET", "/api/v1/nothing")
    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")
    assert "/api/v1/nothing" in missing.json()["message"]
    wrong = ann("PATCH", paths.JOBS)
    assert (wrong.status_code, wrong.json()["code"]) == (405, "invalid_request")
    assert set(wrong.headers["Allow"].split(", ")) == {"GET", "POST"}
    assert ann("GET", paths.JOBS + "/", allow_redirects=False).status_code == 404


def test_an_unexpected_exception_is_a_500_with_an_id_and_no_internals(
    server: Running, ann: Api, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise RuntimeError("inner secret")

    server.parts.service.runtime.instance_types = broken  # type: ignore[method-assign, assignment]  # a bug, which none has yet
    answer = ann("GET", paths.INSTANCE_TYPES)
    assert (answer.status_code, answer.json()["code"]) == (500, "server_error")
    assert "inner secret" not in answer.text
    assert answer.headers["X-Request-Id"] in answer.json()["hint"]
    until(lambda: "inner secret" in caplog.text)  # logged once the answer is out
    assert answer.headers["X-Request-Id"] in caplog.text


def test_each_request_is_a_line_of_json_without_tokens_or_queries(
    server: Running, ann: Api
) -> None:
    answer = ann(
        "GET", paths.JOBS, params={"name": "hidden-name"}, headers={"X-Request-Id": "mine-1"}
    )
    assert answer.headers["X-Request-Id"] == "mine-1"
    ann("GET", paths.job("train"))
    until(lambda: len(server.log_lines()) == 2)
    first, second = server.log_lines()
    assert (
        first.items()
        >= {
            "id": "mine-1",
            "method": "GET",
            "path": paths.JOBS,
            "status": 200,
            "user": "ann",
        }.items()
    )
    assert (second["route"], second["status"]) == ("/api/v1/jobs/{name}", 404)
    text = server.access_log.getvalue()
    assert ann.token
    assert ann.token not in text
    assert "hidden-name" not in text


@pytest.mark.parametrize("given", ["a b", "x" * 65, 'a"b', ""])
def test_a_request_id_that_could_spoil_the_log_is_replaced(given: str, ann: Api) -> None:
    assert ann("GET", paths.INFO, headers={"X-Request-Id": given}).headers["X-Request-Id"] != given


def test_metrics_count_requests_jobs_followers_and_capacity(server: Running, ann: Api) -> None:
    ann.submit()
    ann("GET", "/some/scan/1")
    text = ann("GET", paths.METRICS).text
    assert (
        'client_lib_http_requests_total{method="POST",route="/api/v1/jobs",status="201"} 1.0'
        in text
    )
    assert 'client_lib_http_requests_total{method="GET",route="(none)",status="404"} 1.0' in text
    assert 'client_lib_http_request_seconds_count{route="/api/v1/jobs"} 1.0' in text
    assert 'client_lib_jobs{state="PENDING"} 1.0' in text
    assert 'client_lib_jobs{state="FAILED"} 0.0' in text
    assert "client_lib_log_followers 0.0" in text


def test_info_doctor_and_instance_types_answer(ann: Api) -> None:
    info = ann("GET", paths.INFO).json()
    assert (info["version"], info["commit"]) == (__version__, commit())
    assert ann("GET", paths.DOCTOR).json()["checks"]
    assert ann("GET", paths.INSTANCE_TYPES).json()["instance_types"][0]["name"] == "cpu.2C.8G"


def test_a_server_that_stops_is_not_ready(server: Running, ann: Api) -> None:
    server.call(server.parts.stopping.set)
    answer = ann("GET", paths.READYZ)
    assert (answer.status_code, answer.json()["code"], answer.headers["Retry-After"]) == (
        503,
        "unavailable",
        "1",
    )


def test_every_error_is_an_error_body(ann: Api) -> None:
    for answer in (ann("GET", "/x"), ann("GET", paths.job("x")), ann("POST", paths.JOBS, data=b"")):
        assert answer.headers["Content-Type"] == "application/json"
        assert set(json.loads(answer.content)) <= {"code", "message", "hint"}
