"""Sessions in a running worker: commands with pipes and with a terminal, connections to ports."""

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import repeat
from typing import Any

import pytest

from client_lib.launcher_protocol import control
from client_lib.launcher_protocol.frames import (
    BLOCK,
    DATA,
    ERRORS,
    EXITED,
    KEEP,
    SIGNAL,
    WINDOW,
    Frames,
    frame,
    json_frame,
)
from tests.kit.interpreters import EACH_PYTHON
from tests.kit.processes import alive
from tests.kit.waiting import until
from tests.worker.conftest import Worker

pytestmark = pytest.mark.process

Make = Callable[..., Worker]

WAITS = """
    import time
    print("runs", flush=True)
    time.sleep(1000)
"""
TERMINAL = {"rows": 33, "columns": 101, "term": "xterm-256color"}


class User:
    """The user's end of a session."""

    def __init__(self, peer: socket.socket) -> None:
        self.peer, self.frames = peer, Frames()
        self.shown = {DATA: b"", ERRORS: b""}
        self.exit: dict[str, Any] | None = None
        peer.settimeout(30.0)

    def send(self, kind: bytes, data: bytes = b"") -> None:
        self.peer.sendall(frame(kind, data))

    def read(self) -> bool:
        """False: the other end has closed the connection."""
        received = self.peer.recv(BLOCK)
        for kind, data in self.frames.feed(received):
            if kind == EXITED:
                self.exit = json.loads(data)
            elif kind != KEEP:
                self.shown[kind] += data
        return bool(received)

    def read_until(self, text: bytes) -> None:
        while text not in self.shown[DATA]:
            assert self.read(), f"{text!r} did not come, but {self.shown}"

    def read_to_end(self) -> dict[str, Any]:
        while self.read():
            pass
        assert self.exit is not None, "the session ended without its last frame"
        return self.exit


@contextmanager
def session(worker: Worker, **request: Any) -> Iterator[User]:
    with control.connect(worker.directory.control) as peer:
        control.begin_session(peer, request)
        yield User(peer)


def runs(worker: Worker) -> Worker:
    worker.start().go()
    until(lambda: any(record.text == "runs" for record in worker.records()), "the rank runs")
    return worker


@EACH_PYTHON
def test_a_command_gets_stdin_and_gives_both_outputs_and_its_exit_code(
    worker: Make, python: str
) -> None:
    one = runs(worker(WAITS, python=python))
    with session(one, argv=["sh", "-c", "cat; echo wrong >&2; exit 7"]) as user:
        user.send(DATA, b"some ")
        user.send(DATA, b"bytes")
        user.send(DATA)
        assert user.read_to_end() == {"exit_code": 7}
        assert user.shown == {DATA: b"some bytes", ERRORS: b"wrong\n"}


def test_much_data_in_both_directions(worker: Make) -> None:
    one, sent = runs(worker(WAITS)), os.urandom(BLOCK) * 40
    with session(one, argv=["cat"]) as user:
        for begin in range(0, len(sent), BLOCK):
            user.send(DATA, sent[begin : begin + BLOCK])
            user.peer.setblocking(True)
            user.read()
        user.send(DATA)
        assert user.read_to_end() == {"exit_code": 0}
        assert user.shown[DATA] == sent


def test_the_environment_and_the_folder_of_a_rank_or_of_the_worker(worker: Make) -> None:
    one = runs(worker(WAITS, processes_per_worker=2))
    script = 'echo "$RANK/$WORLD_SIZE/$CLIENT_LIB_JOB_NAME/$TORCHELASTIC_ERROR_FILE"; pwd'
    for rank, seen in ((1, "1/2/job-1/"), (None, "//job-1/")):
        with session(one, argv=["sh", "-c", script], rank=rank) as user:
            assert user.read_to_end() == {"exit_code": 0}
            assert user.shown[DATA].decode().splitlines() == [seen, str(one.folder)]


def test_a_terminal_has_a_size_that_changes_and_takes_ctrl_c(worker: Make) -> None:
    one = runs(worker(WAITS))
    script = (
        "trap 'stty size' WINCH; trap 'echo got it; exit 9' INT; stty size; while :; do sleep "
        "0.01; done"
    )
    with session(one, argv=["sh", "-c", script], terminal=TERMINAL) as user:
        user.read_until(b"33 101")
        user.peer.sendall(json_frame(WINDOW, [44, 55]))
        user.read_until(b"44 55")
        user.send(DATA, b"\x03")
        assert user.read_to_end() == {"exit_code": 9}
        assert b"got it" in user.shown[DATA]


def test_a_shell_without_a_command(worker: Make) -> None:
    with session(runs(worker(WAITS)), terminal=TERMINAL) as user:
        user.send(DATA, b"echo $((6 * 7)) $TERM; exit 3\n")
        assert user.read_to_end() == {"exit_code": 3}
        assert b"42 xterm-256color" in user.shown[DATA]


def test_a_signal_without_a_terminal(worker: Make) -> None:
    # no shell: one that is about to start its command can lose the signal
    waits = "import time; print('up', flush=True); time.sleep(1000)"
    with session(runs(worker(WAITS)), argv=[sys.executable, "-c", waits]) as user:
        user.read_until(b"up")
        user.peer.sendall(json_frame(SIGNAL, signal.SIGINT))
        assert user.read_to_end() == {"exit_code": 130}


def test_a_program_that_is_not_there(worker: Make) -> None:
    with session(runs(worker(WAITS)), argv=["no-such-program"]) as user:
        assert user.read_to_end() == {"error": "no-such-program: No such file or directory"}


def test_a_command_ends_with_its_user(worker: Make) -> None:
    with session(runs(worker(WAITS)), argv=["sh", "-c", "echo $$; exec sleep 1000"]) as user:
        user.read_until(b"\n")
        pid = int(user.shown[DATA])
    until(lambda: not alive(pid), "the command has ended")


def test_a_command_ends_with_its_user_who_left_unsent_input(worker: Make) -> None:
    with session(runs(worker(WAITS)), argv=["sh", "-c", "echo $$; exec sleep 1000"]) as user:
        user.read_until(b"\n")
        pid = int(user.shown[DATA])
        user.peer.settimeout(0.5)
        with pytest.raises(socket.timeout):
            # until no buffer on the way has room
            any(user.send(DATA, each) for each in repeat(bytes(2**22)))
    until(lambda: not alive(pid), "the command has ended")


def test_a_session_ends_with_the_attempt_while_its_user_reads_nothing() -> None:
    script = """
        import os, socket, time
        from client_lib.launcher_protocol import frames
        from client_lib.launcher_protocol.rank_processes import Process
        from client_lib.worker import session
        from client_lib.worker.system import choose

        frames.KEEP_S = 0.05
        sessions = session.Sessions(choose(), [Process(0, 0, [], dict(os.environ), "/")])
        user, workers = socket.socketpair()
        sessions.begin({"argv": ["yes"]}, workers)
        workers.close()
        time.sleep(1.0)  # no buffer has room, and KEEP waits
        sessions.end()
        os.wait()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], timeout=30, check=True)


def test_a_connection_needs_no_lock_that_another_thread_of_the_launcher_holds() -> None:
    """The thread that sends outputs may be in any call when the session is forked: here
    it resolves its first name.
    """
    script = """
        import importlib.machinery, os, socket, sys, threading
        from client_lib.launcher_protocol.rank_processes import Process
        from client_lib.worker import session
        from client_lib.worker.system import choose

        class Waits:
            def find_spec(self, name, path, target=None):
                if name == "encodings.idna":
                    return importlib.machinery.ModuleSpec(name, self)

            def create_module(self, spec):
                return None

            def exec_module(self, module):
                begun.set()
                threading.Event().wait()

        sessions = session.Sessions(choose(), [Process(0, 0, [], dict(os.environ), "/")])
        begun = threading.Event()
        sys.meta_path.insert(0, Waits())
        threading.Thread(target=lambda: socket.getaddrinfo("server", 80), daemon=True).start()
        begun.wait()
        user, workers = socket.socketpair()
        with socket.create_server(("127.0.0.1", 0)) as listening:
            sessions.begin({"port": listening.getsockname()[1]}, workers)
            listening.settimeout(10.0)
            listening.accept()
        sessions.end()
        os.wait()
        os._exit(0)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], timeout=30, check=True)


@pytest.mark.parametrize("portable", [False, True])
def test_a_session_ends_with_the_ranks_and_changes_nothing_of_their_end(
    worker: Make, portable: bool
) -> None:
    one = runs(worker(WAITS.replace("1000", "2"), portable=portable))
    with session(
        one, argv=["sh", "-c", "trap '' HUP TERM; echo $$; while :; do sleep 1; done"]
    ) as user:
        user.read_until(b"\n")
        assert user.read_to_end() == {"error": "the attempt has ended"}
        report = one.report()
        assert (report["reason"], report["exit_code"]) == ("Completed", 0)
        until(lambda: not alive(int(user.shown[DATA])), "the command has ended")


def test_a_connection_to_a_port(worker: Make) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        one, port = runs(worker(WAITS)), listening.getsockname()[1]
        with session(one, port=port) as user, listening.accept()[0] as inside:
            user.send(DATA, b"GET")
            assert inside.recv(3) == b"GET"
            user.send(DATA)
            assert inside.recv(1) == b""
            inside.sendall(b"answer")
            inside.close()
            assert user.read_to_end() == {"exit_code": 0}
            assert user.shown[DATA] == b"answer"
    with session(one, port=port) as user:
        assert user.read_to_end() == {"error": f"port {port}: Connection refused"}


def test_there_is_no_session_before_the_ranks_run(worker: Make) -> None:
    one = worker(WAITS).start()
    assert one.event() == control.READY
    with (
        control.connect(one.directory.control) as peer,
        pytest.raises(OSError, match="runs no ranks now"),
    ):
        control.begin_session(peer, {"argv": ["true"]})
