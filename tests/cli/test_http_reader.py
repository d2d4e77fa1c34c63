"""The reads of the command line: what they repeat, what they refuse, and the way through a proxy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from client_lib.cli.http_reader import Reader
from client_lib.errors import BadResponse, InvalidRequest, ServerUnreachable, Unavailable
from client_lib.spec import paths
from client_lib.transport.config import Config, Endpoint

from .small_server import SmallServer, job


class StartingServer(SmallServer):
    """Is not ready for the first two requests."""

    def answer(self, method: str, target: str) -> tuple[int, Any]:
        if len(self.asked) <= 2:
            return 503, {"code": "unavailable", "message": "starting"}
        return super().answer(method, target)


@pytest.fixture
def starting() -> Iterator[StartingServer]:
    with StartingServer() as server:
        server.add(job("one"))
        yield server


def reader(url: str, token: str | None = None, **settings: Any) -> Reader:
    config = Config(url, token, **settings)
    return Reader(config, lambda: Endpoint(url, token))


def test_a_read_is_repeated_while_the_server_starts(starting: StartingServer) -> None:
    assert reader(starting.url, retry_s=10).get(paths.job("one"), "name")["name"] == "one"
    assert len(starting.asked) == 3


def test_a_read_is_not_repeated_without_a_bound(starting: StartingServer) -> None:
    with pytest.raises(Unavailable, match="starting"):
        reader(starting.url, retry_s=0).get(paths.job("one"), "name")
    assert len(starting.asked) == 1


def test_a_token_does_not_travel_in_clear_text_to_another_host() -> None:
    with pytest.raises(InvalidRequest, match=r"jobs\.example"):
        reader("http://jobs.example", "s3cret").get(paths.INFO, "runtime")


def test_a_missing_file_of_authorities_is_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "ca.pem")
    with pytest.raises(InvalidRequest, match=r"ca\.pem"):
        reader("https://127.0.0.1:9", ca_bundle=missing).get(paths.INFO, "runtime")


def test_a_server_without_tls_is_not_trusted(server: SmallServer) -> None:
    with pytest.raises(ServerUnreachable, match="speaks no TLS"):
        reader(server.url.replace("http:", "https:"), retry_s=10).get(paths.INFO, "runtime")


def test_another_host_is_reached_through_the_proxy(server: SmallServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", server.url.replace("http://", "http://ann:pass%20word@"))
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    server.answers["GET", "/team/api/v1/info"] = 200, {"runtime": "kubernetes"}
    assert reader("http://jobs.example/team").get(paths.INFO, "runtime") == {"runtime": "kubernetes"}
    assert server.asked == [("GET", "http://jobs.example/team/api/v1/info")]


def test_a_server_of_this_machine_is_reached_without_the_proxy(
    server: SmallServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    server.add(job("one"))
    assert reader(server.url).get(paths.job("one"), "name")["name"] == "one"


def test_a_redirect_is_not_followed(server: SmallServer) -> None:
    server.answers["GET", "/api/v1/info"] = 302, b"moved"
    with pytest.raises(BadResponse, match="302"):
        reader(server.url, "s3cret").get(paths.INFO, "runtime")


def test_a_stream_gives_bytes_as_they_come(server: SmallServer) -> None:
    server.answers["GET", "/api/v1/jobs/one/logs"] = 200, b"@end {}\n"
    stream = reader(server.url).stream(paths.job_logs("one"), {"tail": "1"}, accept=paths.LOG_FRAMES, read_s=5)
    assert b"".join(stream) == b"@end {}\n"
    assert server.asked == [("GET", "/api/v1/jobs/one/logs?tail=1")]
