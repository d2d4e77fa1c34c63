"""Threads of an agent go on after any error and any answer."""

import json
import queue
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from client_lib.durable import is_full
from client_lib.launcher_protocol.log_segments import SegmentWriter
from client_lib.launcher_protocol.output_store import SourceFile
from client_lib.launcher_protocol.reasons import START_FAILED
from client_lib.worker.outputs.collector import FileFinder, Sync
from client_lib.worker.outputs.http_store import HttpStore
from client_lib.worker.pod import AgentEvent, AgentThread, Instruction
from client_lib.worker.pod.log_carriers import ServerCarrier, Spool
from client_lib.worker.pod.peer_channel import PeerChannel, StartBarrier
from client_lib.worker.pod.server_channel import ServerChannel, ServerClient
from client_lib.worker.server_connection import Unreachable
from tests.kit.bounds import Bounds
from tests.kit.odd_server import OddServer, http
from tests.kit.small_disk import small_disk
from tests.kit.waiting import until
from tests.worker_gateway.conftest import free_port
from tests.worker_gateway.test_log_file import records
from tests.worker_gateway.test_polite_end import pod_settings

DEADLINE_S = 30


def test_an_error_is_logged_and_the_thread_goes_on_to_its_end(
    capfd: pytest.CaptureFixture[str],
) -> None:
    left = [ValueError("first"), KeyError("second")]

    def work() -> None:
        if left:
            raise left.pop(0)

    thread = AgentThread("carrier", work)
    thread.start()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    said = capfd.readouterr().err
    assert said.count("client-lib: an error in the agent's thread carrier:\n") == 2
    assert "ValueError: first\n" in said


def test_an_agent_whose_stderr_is_full_goes_on() -> None:
    program = """
from client_lib.worker.pod import AgentThread, warn

def work():
    if left:
        left.pop()
        warn("the log waits for the server")
        raise ValueError

left = [1, 2]
AgentThread("carrier", work).run()
print(left)
"""
    with open("/dev/full", "w") as full:
        ended = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=full)
    assert (ended.returncode, ended.stdout) == (0, b"[]\n")


@pytest.mark.parametrize(
    "answer", [b"", b"<html>", b"[]", b"{}", b'"text"', b'{"length": null, "durable": 1}']
)
def test_an_answer_that_is_not_of_this_server_costs_no_line(
    tmp_path: Path,
    odd_server: Callable[..., OddServer],
    answer: bytes,
    capfd: pytest.CaptureFixture[str],
) -> None:
    log = SegmentWriter(str(tmp_path), 2**62, 2**20)
    log.add(records(0, 10))
    log.flush()
    end = len(records(0, 10))
    right = json.dumps({"length": end, "durable": end}).encode()
    server = odd_server(http("200 OK", answer), http("200 OK", right))
    client = ServerClient(pod_settings(server.url, 0), "token", None)
    carrier = ServerCarrier(client, Spool(str(tmp_path), 2**30))
    carrier.start()
    carrier.finish()
    carrier.join(DEADLINE_S)
    assert not carrier.is_alive()
    assert [request.body for request in server.requests] == [records(0, 10)] * 2
    first, last = capfd.readouterr().err.splitlines()
    assert first.startswith("client-lib: the log waits for the server: ")
    assert last == "client-lib: the server takes the log again"


def test_a_report_does_not_wait_for_a_log_that_a_full_server_can_not_take(
    tmp_path: Path, odd_server: Callable[..., OddServer], bounds: Bounds
) -> None:
    bounds("client_lib.worker.pod.log_carriers", _LATE_S=0.0)
    log = SegmentWriter(str(tmp_path), 2**62, 2**20)
    log.add(records(0, 10))
    log.flush()
    end = len(records(0, 10))
    right = json.dumps({"length": end, "durable": end}).encode()
    server = odd_server(
        *[http("507 Full", b'{"message": "the disk is full"}')] * 5, http("200 OK", right)
    )
    client = ServerClient(pod_settings(server.url, 0), "token", None)
    carrier = ServerCarrier(client, Spool(str(tmp_path), 2**30))
    carrier.start()
    carrier.finish()
    until(lambda: carrier.fails, "the report need not wait")
    carrier.join(DEADLINE_S)
    assert not carrier.is_alive()
    assert not carrier.fails


def test_a_server_without_room_for_a_line_of_the_list_is_named(
    tmp_path: Path, odd_server: Callable[..., OddServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLIENT_LIB_POD_UID", "uid-0")
    (tmp_path / "work").mkdir()
    finder = FileFinder(str(tmp_path / "work"), ["**"], str(tmp_path / "memory"))
    (tmp_path / "work" / "a").write_text("a")
    full = HttpStore(
        odd_server(http("507 Full", b'{"message": "the disk is full"}')).url, None, None
    )
    with pytest.raises(OSError, match="the disk is full"):
        Sync(finder, full, False, lambda: None).look(True)


def test_an_output_is_sent_again_if_another_server_takes_it(
    tmp_path: Path, odd_server: Callable[..., OddServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLIENT_LIB_POD_UID", "uid-0")
    server = odd_server(http("200 OK", b"{}"), http("200 OK", b'{"length": 1}'))
    (tmp_path / "a").write_text("a")
    with open(tmp_path / "a", "rb") as file:
        HttpStore(server.url, None, None).keep(SourceFile("a", file.fileno(), False, lambda: None))
    assert len(server.requests) == 2


def test_a_file_that_was_cut_off_is_not_taken_for_the_whole(
    tmp_path: Path, odd_server: Callable[..., OddServer]
) -> None:
    server = odd_server(http("200 OK", b"a function")[:-3], http("200 OK", b"a function"))
    client, file = ServerClient(pod_settings(server.url, 0), "token", None), tmp_path / "function"
    with pytest.raises(Unreachable, match="the function was cut off"):
        client.fetch("function", str(file), lambda: None)
    client.fetch("function", str(file), lambda: None)
    assert file.read_bytes() == b"a function"


def test_a_disk_that_takes_no_other_file_is_full(
    tmp_path: Path, odd_server: Callable[..., OddServer]
) -> None:
    client = ServerClient(
        pod_settings(odd_server(http("200 OK", b"a function")).url, 0), "token", None
    )
    with (
        small_disk(tmp_path / "disk", "nr_inodes=1") as disk,
        pytest.raises(OSError, match="No space") as raised,
    ):
        client.fetch("function", str(disk / "function"), lambda: None)
    assert is_full(raised.value)


@pytest.mark.parametrize("answer", [b"<html>", b"[]", b'"text"', b"1", b"null"])
def test_an_agent_tries_again_if_another_server_answers_its_claim(
    odd_server: Callable[..., OddServer], answer: bytes
) -> None:
    settings = pod_settings(odd_server(http("200 OK", answer)).url, 0)
    channel = ServerChannel(
        lambda: ServerClient(settings, "token", None), lambda: 0, "", lambda _: None
    )
    with pytest.raises(Unreachable, match="is not this server"):
        channel.claim()


@pytest.mark.parametrize(
    "hello", [b'{"token": "\\ud800", "worker": 1}', b"[" * 60_000, b"\xff", b""]
)
def test_a_stranger_that_says_anything_leaves_the_start_barrier_as_it_is(hello: bytes) -> None:
    port = free_port()
    barrier = StartBarrier(pod_settings(None, 0, barrier_port=port), "token", lambda _: None)
    barrier.listen()

    def says(message: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as peer:
            peer.sendall(message + b"\n")
            if message == hello:
                peer.shutdown(socket.SHUT_WR)
                return peer.recv(100)
            barrier.update(0, {"state": "ready"})
            return peer.recv(100)

    assert says(hello) == b""
    ready = b'{"token": "token", "worker": 1, "uid": "uid-1"}\n{"state": "ready"}'
    assert json.loads(says(ready)) == {"do": "go"}


def test_worker_0_is_stopped_by_the_failure_of_another_while_it_still_prepares() -> None:
    port, events = free_port(), queue.SimpleQueue[AgentEvent]()
    first, other = (
        PeerChannel(pod_settings(None, worker, barrier_port=port), "token", post)
        for worker, post in ((0, events.put), (1, lambda _: None))
    )
    for channel in (first, other):
        channel.claim()
        channel.start()
    report: Any = {"reason": START_FAILED}
    other.deliver(report, [], lambda: False)
    assert events.get(timeout=DEADLINE_S) == Instruction("stop")


def test_a_worker_whose_end_meets_a_broken_connection_announces_it_by_another_one() -> None:
    events, ended = queue.SimpleQueue[AgentEvent](), {"state": "ended", "failed": True}
    with socket.create_server(("127.0.0.1", 0)) as worker_0:
        worker_0.settimeout(DEADLINE_S)
        channel = PeerChannel(
            pod_settings(None, 1, barrier_port=worker_0.getsockname()[1]), "token", events.put
        )
        channel.claim()
        channel.start()
        first, _ = worker_0.accept()
        with first.makefile() as lines:
            hello, state = json.loads(next(lines)), json.loads(next(lines))
            assert (hello["worker"], state["state"]) == (1, "preparing")
        with channel._lock:  # its thread has seen the end of the connection, and can't note it yet
            broken = channel._worker_0
            assert broken
            first.close()
            until(lambda: broken.fileno() == -1, "the connection is closed")
            channel._state = ended
            channel._send_state()
        second, _ = worker_0.accept()
        with second, second.makefile() as lines:
            assert [json.loads(line) for line in lines][1:] == [ended]
    assert events.get(timeout=DEADLINE_S) == Instruction("exit")
