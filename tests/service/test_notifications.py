"""What a webhook gets when a job ends, hangs or moves again; when it gets it
again; and who may be told.
"""

import asyncio
import json
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from client_lib.errors import ClientLibError, Forbidden, InvalidRequest
from client_lib.spec.job import JobSpec
from client_lib.spec.states import Reason, State
from client_lib.submit.arguments import checked_spec
from server_stub.service import notifications
from server_stub.service.notifications import AllowedHosts, Refused
from server_stub.users import User
from tests.kit.bounds import Bounds
from tests.kit.waiting import eventually
from tests.service.bench import Bench
from tests.service.test_hangs import becomes, with_two_ranks


class Receiver:
    """An HTTP server on a free port that keeps what is posted to it."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        """Answers of the next requests; after them 200."""
        self.got: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.may_answer = threading.Event()
        self.may_answer.set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                receiver.may_answer.wait(20)
                status = receiver.statuses.pop(0) if receiver.statuses else 200
                receiver.paths.append(self.path)
                if status == 200:
                    receiver.got.append(body)
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", f"{receiver.url}elsewhere")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/T0/secret-path/"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self.may_answer.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def soon(bounds: Bounds) -> None:
    # the bound of tries, without its minutes
    bounds(notifications, PAUSES_S=(0.02, 0.02, 0.02))


async def ends(bench: Bench, name: str = "one", **spec: Any) -> str:
    """A job that is submitted and succeeds."""
    job = await bench.submit(name=name, **spec)
    bench.runtime.runs(job.id)
    bench.runtime.end(job.id)
    await bench.until(name, State.SUCCEEDED)
    return job.id


def with_server(bench: Bench, run: Callable[[], Any], **settings: Any) -> None:
    async def main() -> None:
        async with bench.server(**settings):
            await run()

    asyncio.run(main())


def test_the_end_of_a_job_is_told_with_the_first_line_of_its_explanation(
    bench: Bench, receiver: Receiver
) -> None:
    async def run() -> None:
        job_id = await ends(bench, notify=receiver.url + "?a=b")
        await eventually(lambda: receiver.got)
        (got,) = receiver.got
        assert got.pop("text").startswith("job one SUCCEEDED in ")
        assert got.pop("id").startswith(job_id)
        assert got == {
            "event": "ended",
            "job": "one",
            "attention": [],
            "owner": "ann",
            "state": "SUCCEEDED",
            "reason": "Completed",
            "attempt": 1,
        }
        assert receiver.paths == ["/T0/secret-path/?a=b"]
        await eventually(lambda: not bench.service.busy())

    with_server(bench, run)


def test_slack_gets_its_form(bench: Bench, receiver: Receiver) -> None:
    async def run() -> None:
        await ends(bench, notify="slack+" + receiver.url)
        await eventually(lambda: receiver.got)
        assert receiver.got[0].keys() == {"text"}

    with_server(bench, run)


def test_a_receiver_that_is_away_is_tried_again_and_one_that_refuses_is_not(
    bench: Bench, receiver: Receiver
) -> None:
    async def run() -> None:
        receiver.statuses = [503, 429]
        await ends(bench, notify=receiver.url)
        await eventually(lambda: receiver.got)
        receiver.statuses = [404]
        await ends(bench, "two", notify=receiver.url)
        await eventually(lambda: not bench.service.busy())
        receiver.statuses = [500] * 9
        await ends(bench, "three", notify=receiver.url)
        await eventually(lambda: not bench.service.busy())
        assert len(receiver.paths) == 3 + 1 + 4
        assert [got["job"] for got in receiver.got] == ["one"]

    with_server(bench, run)


def test_a_redirect_is_not_followed(bench: Bench, receiver: Receiver) -> None:
    async def run() -> None:
        receiver.statuses = [302]
        await ends(bench, notify=receiver.url)
        await eventually(lambda: not bench.service.busy())
        assert receiver.paths == ["/T0/secret-path/"]

    with_server(bench, run)


async def ends_unsent(bench: Bench, receiver: Receiver, bounds: Bounds) -> None:
    """Let a job end whose notification is refused once, and not repeated
    before the end of this server.
    """
    bounds(notifications, PAUSES_S=(600.0,))
    receiver.statuses = [503]
    await ends(bench, notify=receiver.url)
    await eventually(lambda: receiver.paths)


def test_a_restart_of_the_server_loses_no_end_and_repeats_none(
    bench: Bench, receiver: Receiver, bounds: Bounds
) -> None:
    async def first() -> None:
        await ends_unsent(bench, receiver, bounds)

    async def second() -> None:
        await eventually(lambda: receiver.got)
        await eventually(lambda: not bench.service.busy())

    async def third() -> None:
        assert not bench.service.busy()

    for run in (first, second, third):
        with_server(bench, run)
    assert [got["job"] for got in receiver.got] == ["one"]


def test_a_damaged_notification_keeps_no_server_from_its_start(
    bench: Bench, receiver: Receiver, bounds: Bounds
) -> None:
    async def first() -> None:
        await ends_unsent(bench, receiver, bounds)
        await bench.service._store.write(
            lambda c: c.exec_driver_sql("UPDATE jobs SET unsent = '{'") and None
        )

    async def second() -> None:
        assert (await bench.info("one")).state is State.SUCCEEDED

    for run in (first, second):
        with_server(bench, run)


def test_a_receiver_that_does_not_answer_delays_no_job(bench: Bench, receiver: Receiver) -> None:
    async def run() -> None:
        receiver.may_answer.clear()
        await ends(bench, notify=receiver.url)
        await ends(bench, "two")
        assert bench.service.busy()
        assert not receiver.got
        receiver.may_answer.set()
        await eventually(lambda: receiver.got)

    with_server(bench, run)


def test_a_name_server_that_does_not_answer_takes_no_thread_of_others(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, resolve = threading.Event(), socket.getaddrinfo

    def slow(host: str, *args: Any, **options: Any) -> Any:
        if host == "away.example":
            answers.wait(20)
            raise OSError("no answer")
        return resolve(host, *args, **options)

    # no resolver of a machine can be made to wait
    monkeypatch.setattr(socket, "getaddrinfo", slow)

    async def run() -> None:
        try:
            for number in range(50):
                await asyncio.wait_for(
                    ends(bench, f"away-{number}", notify="http://away.example/"), 10
                )
            await asyncio.sleep(0.1)
            assert await asyncio.wait_for(asyncio.to_thread(lambda: 1), 5) == 1
        finally:
            answers.set()

    with_server(bench, run)


def test_a_slow_host_holds_up_no_other(bench: Bench, receiver: Receiver) -> None:
    async def run() -> None:
        receiver.may_answer.clear()
        for number in range(70):
            await ends(bench, f"slow-{number}", notify=receiver.url)
        async with await asyncio.start_server(lambda *_: told.set(), "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            await ends(bench, "other", notify=f"http://localhost:{port}/")
            await asyncio.wait_for(told.wait(), 5)
        receiver.may_answer.set()

    told = asyncio.Event()
    with_server(bench, run)


def test_a_hang_is_told_and_that_it_is_over(bench: Bench, receiver: Receiver) -> None:
    async def run(job_id: str) -> None:
        await becomes(bench, Reason.HUNG)
        await eventually(lambda: len(receiver.got) == 1)
        bench.runtime.runs(job_id)
        await becomes(bench, Reason.RUNNING)
        await eventually(lambda: len(receiver.got) == 2)
        hangs, moves = receiver.got
        assert (hangs["event"], moves["event"]) == ("hangs", "moves")
        assert hangs["text"].startswith(
            "job one is RUNNING (Hung): rank 0 has waited in all_reduce (train.py:41) since "
        )
        assert moves["text"] == "job one is RUNNING (Running): ranks 0-1 move again after 70 s"

    with_two_ranks(bench, run, notify=receiver.url)


def test_a_deleted_job_tells_nothing(bench: Bench, receiver: Receiver) -> None:
    async def run() -> None:
        job = await bench.submit(name="one", notify=receiver.url)
        bench.runtime.runs(job.id)
        await bench.service.delete(User("ann"), "one", force=True)
        bench.runtime.end(job.id)
        await eventually(lambda: not bench.service.busy())
        assert not receiver.paths

    with_server(bench, run)


def test_values_of_secrets_are_left_out(bench: Bench, receiver: Receiver) -> None:
    async def run() -> None:
        spec = {
            "env_variables": {"HF_TOKEN": "hf_abcdef"},
            "args": ["--api-key=key-4567"],
            "secrets": ["PASS"],
            "name": "one",
            "notify": receiver.url,
        }
        text, _ = await bench.service.submits.submit(
            User("ann"), bench.request(secret_values={"PASS": "xyz-123"}, **spec), None
        )
        job_id = (await bench.info("one")).id
        bench.runtime.runs(job_id)
        said = "no program hf_abcdef for xyz-123 and key-4567"
        bench.runtime.end(job_id, Reason.START_FAILED, said)
        await eventually(lambda: receiver.got)
        assert receiver.got[0]["text"] == (
            "job one FAILED (StartFailed): no program *** for *** and ***"
        )
        assert b"secret-path" not in text

    with_server(bench, run)


def test_the_address_is_shown_to_nobody_but_its_owner(
    bench: Bench, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    async def run() -> None:
        receiver.statuses = [404]
        await ends(bench, notify=receiver.url)
        await eventually(lambda: not bench.service.busy())
        assert (await bench.info("one")).spec.notify == "***"
        assert b"secret-path" in await bench.service.request(User("ann"), "one")
        assert b"secret-path" not in await bench.service.request(
            User("root", admin=True), "one", "ann"
        )
        assert (
            "secret-path"
            not in (await bench.service.manifest(User("ann"), "one")).model_dump_json()
        )
        with pytest.raises(Forbidden, match="is a mask, not a URL"):
            await bench.submit(notify="***")

    with_server(bench, run)
    assert "its notification 'ended' was not sent: it answered 404" in caplog.text
    assert "secret-path" not in caplog.text
    assert "secret-path" not in repr(JobSpec(script="a.py", notify=receiver.url))


@pytest.mark.parametrize(
    "url",
    [
        "ftp://h/secret",
        "https:///secret",
        "http://u:secret@h/",
        "http://h:secret/",
        "http://h/a secret",
    ],
)
def test_what_is_no_address_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(
        InvalidRequest, match=r"^notify: is no URL of a webhook: write https://host/path"
    ) as caught:
        checked_spec({"script": "a.py", "notify": url})
    assert "secret" not in str(caught.value)


def test_a_server_of_several_users_sends_only_where_its_settings_allow(
    bench: Bench, receiver: Receiver
) -> None:
    here = f"http://localhost:{receiver.port}/"

    async def refused() -> None:
        with pytest.raises(Forbidden, match="notify has the host localhost") as caught:
            await bench.submit(notify=here)
        assert "NOTIFY_HOSTS" in (caught.value.hint or "")

    async def not_reached() -> None:  # the name is allowed; its address is this machine
        await ends(bench, "two", notify=here)
        await eventually(lambda: not bench.service.busy())
        assert not receiver.paths

    async def reached() -> None:
        await ends(bench, "three", notify=here)
        await eventually(lambda: receiver.got)

    users = bench.folder / "users.toml"
    with_server(bench, refused, users_file=users)
    with_server(bench, not_reached, users_file=users, notify_hosts=["localhost"])
    with_server(
        bench, reached, users_file=users, notify_hosts=["localhost", "127.0.0.0/8", "::1/128"]
    )


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("hooks.slack.com", True),
        ("HOOKS.slack.com", True),
        ("a.b.example.com", True),
        ("10.1.2.3", True),
        ("[::ffff:10.0.0.1]", True),
        ("example.com", False),
        ("11.1.2.3", False),
        ("[fd00::5efe:10.1.2.3]", False),
        ("hooks.slack.com.evil.org", False),
    ],
)
def test_hosts_are_allowed_by_name_pattern_and_network(host: str, allowed: bool) -> None:
    hosts = AllowedHosts(["hooks.slack.com", "*.example.com", "10.0.0.0/8"], several_users=True)
    try:
        hosts.check(f"https://{host}/x")
        found = True
    except ClientLibError:
        found = False
    assert found is allowed


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "::1",
        "169.254.169.254",
        "192.168.1.1",
        "::ffff:127.0.0.1",
        "2002:7f00:1::",
        "224.0.0.1",
        "0.0.0.0",
        "fe80::1%eth0",
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::808:808",
        "fec0::1",
        "feff::1",
        "::10.0.0.1",
        "::ffff:0:10.0.0.1",
        "2001:0:4136:e378:8000:63bf:f5ff:fffe",
        "2a00:1450:4001::5efe:10.0.0.1",
        "2a00:1450:4001::200:5efe:10.0.0.1",
    ],
)
def test_addresses_within_are_refused_whatever_name_leads_there(address: str) -> None:
    hosts = AllowedHosts(["*"], several_users=True)
    for public in ("8.8.8.8", "2a00:1450:4001::8", "64:ff9b::808:808"):
        hosts.check_address(public)
    with pytest.raises(Refused):
        hosts.check_address(address)
    AllowedHosts(None, several_users=False).check_address(address)


@given(
    st.ip_addresses(v=4).filter(lambda address: not address.is_global),
    st.sampled_from(
        ["::ffff:{}", "::ffff:0:{}", "::{}", "64:ff9b::{}", "2a00::5efe:{}", "2a00::200:5efe:{}"]
    ),
)
def test_no_form_of_an_address_within_is_public(address: IPv4Address, form: str) -> None:
    with pytest.raises(Refused):
        AllowedHosts(["*"], several_users=True).check_address(form.format(address))


def test_an_answer_that_is_no_http_is_a_problem_of_the_moment(bench: Bench, tmp_path: Path) -> None:
    async def run() -> None:
        tries = []

        async def odd(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            tries.append(1)
            writer.write(b"220 mail ready\r\n")
            writer.close()

        async with await asyncio.start_server(odd, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            await ends(bench, notify=f"http://127.0.0.1:{port}")
            await eventually(lambda: not bench.service.busy())
            assert len(tries) == 4

    with_server(bench, run)
