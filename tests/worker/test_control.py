"""The control socket on its own: what peers send, however it is cut."""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from client_lib.launcher_protocol import control
from client_lib.launcher_protocol.control import ControlServer, Lines, Message
from client_lib.worker.loop import Loop
from tests.kit.bounds import Bounds


class Polled:
    """A server on a loop that the test turns by hand."""

    def __init__(self, path: str) -> None:
        self.orders: list[Message] = []
        self.loop = Loop(self._note_round)
        self.server = ControlServer(path, self._carry_out, self.loop, self._hand_over)

    def _carry_out(self, order: Message) -> None:
        self.orders.append(order)
        self.server.announce(control.STARTED)

    def _hand_over(self, order: Message, peer: socket.socket) -> None:
        self.orders.append(order)
        peer.close()

    def _note_round(self) -> None:
        self.loop.stop()

    def turn(self) -> None:
        """One round, which ends after 0.2 s at the latest."""
        self.loop.call_later(0.2, lambda: None)
        self.loop.run()


@pytest.fixture
def polled(tmp_path: Path) -> Iterator[Polled]:
    one = Polled(str(tmp_path / "control.sock"))
    yield one
    one.server.close()


@given(st.lists(st.integers(1, 30)))
def test_messages_arrive_whole_however_they_are_cut(cuts: list[int]) -> None:
    stop, junk = control.order(control.STOP, grace_s=2.5), b"junk\n"
    data, lines, got = (
        control.order(control.GO) + stop + junk + control.order(control.EXIT),
        Lines(),
        [],
    )
    for cut in [*cuts, len(data)]:
        got += lines.feed(data[:cut])
        data = data[cut:]
    assert got == [{"do": "go"}, {"do": "stop", "grace_s": 2.5}, {"do": "exit"}]


def test_a_line_without_end_does_not_grow_in_memory() -> None:
    lines = Lines()
    for _ in range(100):
        lines.feed(b"x" * 65536)
    assert len(lines._rest) <= control._LINE_MAX


def test_the_newest_event_is_told_to_all_and_to_who_comes_later(
    polled: Polled, tmp_path: Path
) -> None:
    path = str(tmp_path / "control.sock")
    early = control.ControlConnection(control.connect(path))
    polled.turn()
    polled.server.announce(control.READY)
    polled.server.announce(control.STARTED)
    late = control.ControlConnection(control.connect(path))
    polled.turn()
    assert [early.receive(1), early.receive(1)] == [{"event": "ready"}, {"event": "started"}]
    assert late.receive(1) == {"event": "started"}
    early.send(control.order(control.GO))
    polled.turn()
    assert polled.orders == [{"do": "go"}]


def test_a_peer_that_reads_nothing_for_long_gets_the_last_events_after_all(polled: Polled) -> None:
    """The agent of a pod can't connect again."""
    deaf, launchers = socket.socketpair()
    polled.server.take(launchers)
    for number in range(10_000):
        polled.server.tell(control.QUIET, ranks={"0": number}, more="x" * 100)
    polled.server.announce(control.STARTED)
    polled.server.announce(control.ENDED)
    reader, until = control.ControlConnection(deaf), time.monotonic() + 10
    got: list[dict[str, Any]] = []
    while got[-1:] != [{"event": "ended"}] and time.monotonic() < until:
        polled.turn()
        with contextlib.suppress(socket.timeout):
            while message := reader.receive(0.01):
                got.append(message)
    assert got[-2:] == [{"event": "started"}, {"event": "ended"}]
    assert [message["ranks"]["0"] for message in got[:-2]] == list(range(len(got) - 2))
    reader.send(control.order(control.GO))
    polled.turn()
    assert polled.orders == [{"do": "go"}]
    deaf.close()


def test_a_peer_that_asks_for_a_session_and_is_gone_is_dropped(polled: Polled) -> None:
    ours, launchers = socket.socketpair()
    polled.server.take(launchers)
    ours.sendall(control.order(control.GO) + control.order(control.SESSION))
    ours.close()
    polled.turn()
    assert polled.orders == [{"do": "go"}]


def test_the_socket_is_this_users_alone_and_gone_after_the_end(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    one = Polled(str(path))
    assert path.stat().st_mode & 0o777 == 0o600
    one.server.close()
    assert not path.exists()


def test_what_a_dead_launcher_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(path))
    dead.close()
    with pytest.raises(ConnectionRefusedError):
        control.connect(str(path))
    one = Polled(str(path))
    control.connect(str(path)).close()
    one.server.close()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("sent", "again", "why"),
    [
        (b"", b"x", "did not answer within 0.2 s"),
        (b'{"sessions": true}\n', b'{"event": "quiet"}\n', "did not answer within 0.2 s"),
        (b"", b"x" * 2000, "does not use this protocol"),
        (b'{"event": "ready"}\n', b"", "its version does not support sessions"),
    ],
    ids=["no whole line", "no answer", "a line without end", "no sessions"],
)
def test_a_launcher_cannot_hold_up_who_begins_a_session(
    bounds: Bounds, sent: bytes, again: bytes, why: str
) -> None:
    """The launcher runs as the user of the job."""
    bounds(control, _SESSION_S=0.2, _LINE_MAX=100)
    over = threading.Event()
    ours, launchers = socket.socketpair()

    def send() -> None:
        with contextlib.suppress(OSError):
            launchers.sendall(sent)
            while again and not over.wait(0.01):
                launchers.sendall(again)

    with launchers:
        sender = threading.Thread(target=send)
        sender.start()
        with ours, pytest.raises(OSError, match=why):
            control.begin_session(ours, {"argv": ["true"]})
        over.set()
        sender.join()
