"""`client-lib exec`, `shell` and `port-forward` with a real local server and real workers."""

import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from client_lib.cli.commands.sessions import Session, _interrupts
from client_lib.launcher_protocol import frames
from tests.kit.waiting import until

from .conftest import CLI, Run
from .terminal import Terminal

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform == "win32", reason="jobs don't run on Windows itself"),
]

WAITS = "import time\nwhile True:\n    time.sleep(60)\n"


@pytest.fixture
def shell(environment: dict[str, str], local_server: Path) -> dict[str, str]:
    environment["VIRTUAL_ENV"] = sys.prefix
    environment["CLIENT_LIB_STATE_DIR"] = str(local_server)
    return environment


@pytest.fixture
def running_job(run_here: Run, shell: dict[str, str], tmp_path: Path) -> Iterator[str]:
    """A job of two ranks that run."""
    (tmp_path / "train.py").write_text(WAITS)
    done = run_here("submit", "-o", "name", "--processes-per-worker", "2", "train.py")
    assert done.returncode == 0, done.stderr
    name = done.stdout.strip()
    while json.loads(run_here("status", "-o", "json", name).stdout)["state"] == "PENDING":
        pass
    yield name
    run_here("cancel", name)


def test_a_command_reads_stdin_and_gives_its_outputs_and_its_exit_code(
    cli: Run, running_job: str, tmp_path: Path
) -> None:
    done = cli(
        "exec",
        running_job,
        "--",
        "sh",
        "-c",
        "cat; pwd; echo wrong >&2; exit 7",
        stdin="some text\n",
    )
    assert (done.returncode, done.stdout, done.stderr) == (7, f"some text\n{tmp_path}\n", "wrong\n")


def test_the_environment_is_of_a_rank_or_of_the_worker(cli: Run, running_job: str) -> None:
    line = ("sh", "-c", 'echo "$RANK $CLIENT_LIB_JOB_NAME"')
    assert cli("exec", running_job, "--rank", "1", "--", *line).stdout == f"1 {running_job}\n"
    assert cli("exec", running_job, "--worker", "0", "--", *line).stdout == f" {running_job}\n"


def test_each_use_is_an_event_of_the_job(cli: Run, run_here: Run, running_job: str) -> None:
    cli("exec", running_job, "--rank", "1", "--", "echo", "a b")
    last = json.loads(run_here("status", "--events", "-o", "json", running_job).stdout)[-1]
    assert re.fullmatch(r"\S+ runs `echo 'a b'` in rank 1", last["message"])
    assert last["state"] == "RUNNING"


def test_much_data_passes_through_both_ways(shell: dict[str, str], running_job: str) -> None:
    sent = bytes(range(256)) * 80_000
    done = subprocess.run(
        [*CLI, "exec", running_job, "--", "cat"],
        input=sent,
        env=shell,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout == sent) == (0, True), done.stderr


def test_a_terminal_passes_its_size_and_ctrl_c(shell: dict[str, str], running_job: str) -> None:
    script = (
        "trap 'echo got it; exit 9' INT; trap 'stty size' WINCH; stty size; while :; do sleep "
        "0.05; done"
    )
    with Terminal("exec", running_job, "--", "sh", "-c", script, environment=shell) as terminal:
        terminal.resize(33, 101)
        terminal.read_until(b"33 101")
        terminal.resize(44, 55)
        terminal.read_until(b"44 55")
        terminal.write(b"\x03")
        assert b"got it" in terminal.read_to_end()
        assert terminal.exit_code == 9


def test_a_shell_ends_with_the_attempt(
    run_here: Run, shell: dict[str, str], running_job: str
) -> None:
    with Terminal("shell", running_job, environment=shell) as terminal:
        terminal.write(b"echo $((6 * 7))\n")
        terminal.read_until(b"42")
        run_here("cancel", running_job)
        assert b"Error: the attempt has ended" in terminal.read_to_end()
        assert terminal.exit_code == 5


def test_ctrl_c_without_a_terminal_is_a_signal_for_the_command(
    shell: dict[str, str], running_job: str
) -> None:
    script = "trap 'echo got it; exit 9' INT; echo up; while :; do sleep 0.05; done"
    line = [*CLI, "exec", running_job, "--", "sh", "-c", script]
    with subprocess.Popen(
        line, env=shell, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == b"up\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == b"got it\n"
    assert process.returncode == 9


def test_an_interrupt_that_is_ignored_stays_so() -> None:
    session: Any = SimpleNamespace()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with _interrupts(session):
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_port_is_forwarded_for_any_number_of_connections(
    cli: Run, run_here: Run, shell: dict[str, str], running_job: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as inside:
        port = inside.getsockname()[1]
        line = [*CLI, "port-forward", running_job, f"0:{port}"]
        inside.settimeout(30)
        with subprocess.Popen(line, env=shell, stdout=subprocess.PIPE, text=True) as process:
            inside.accept()[0].close()  # the check
            assert process.stdout
            own = int(re.match(r"http://127.0.0.1:(\d+) is port", process.stdout.readline())[1])  # type: ignore[index]
            for number in (b"1", b"2"):
                with socket.create_connection(("127.0.0.1", own), 30) as outside:
                    outside.sendall(b"GET" + number)
                    with inside.accept()[0] as peer:
                        assert peer.recv(4) == b"GET" + number
                        peer.sendall(b"answer" + number)
                    assert outside.recv(100) == b"answer" + number
                    assert outside.recv(1) == b""
            process.send_signal(signal.SIGINT)
        assert process.returncode == 130
    events = json.loads(run_here("status", "--events", "-o", "json", running_job).stdout)
    assert sum(f"connects to port {port} of worker 0" in event["message"] for event in events) == 1
    closed = cli("port-forward", running_job, str(port))
    assert (closed.returncode, closed.stderr) == (5, f"Error: port {port}: Connection refused\n")


def test_a_forwarded_port_finds_a_restarted_server_and_ends_with_its_job(
    shell: dict[str, str], run_here: Run, running_job: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as inside:
        port = inside.getsockname()[1]
        line = [*CLI, "port-forward", running_job, f"0:{port}"]
        with subprocess.Popen(
            line, env=shell, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            inside.accept()[0].close()  # the check
            assert process.stdout
            own = int(re.match(r"http://127.0.0.1:(\d+) is port", process.stdout.readline())[1])  # type: ignore[index]
            assert run_here("server", "restart").returncode == 0
            inside.settimeout(2.0)

            def reaches() -> bool:
                with (
                    suppress(TimeoutError),
                    socket.create_connection(("127.0.0.1", own), 30) as outside,
                ):
                    outside.sendall(b"GET")
                    with inside.accept()[0] as peer:
                        return peer.recv(3) == b"GET"
                return False

            until(reaches, within_s=60)
            assert run_here("cancel", running_job).returncode == 0
            said = process.communicate(timeout=60)[1]
    assert process.returncode == 1
    assert said.endswith(f"Error: job {running_job} is CANCELLED: port {own} is closed\n")


def test_what_is_read_after_the_end_of_a_session_is_dropped() -> None:
    """The thread that reads ends, though nothing is sent any more, and the program
    goes on: a port is forwarded.
    """

    class Server:
        @contextmanager
        def stream(self, *_: object, **__: object) -> Iterator[SimpleNamespace]:
            yield SimpleNamespace(blocks=[frames.json_frame(frames.EXITED, {"exit_code": 0})])

        def call(self, *_: object, **__: object) -> None: ...

    server: Any = Server()
    session, blocks = Session(server, "train", {}), iter([b"data"] * 1000)
    before = threading.active_count()
    session.send_all_of(lambda _: next(blocks, b""))
    assert session.run(lambda *_: None) == 0
    until(lambda: threading.active_count() <= before, within_s=20)


def test_what_cannot_be_entered(cli: Run, run_here: Run, running_job: str) -> None:
    wrong = cli("exec", running_job, "--rank", "2", "--", "true")
    assert (wrong.returncode, wrong.stderr) == (
        5,
        "Error: this job has no rank 2\nits ranks are 0 to 1\n",
    )
    assert "this job has no worker 1" in cli("shell", running_job, "--worker", "1").stderr
    assert (
        "no-such-program: No such file" in cli("exec", running_job, "--", "no-such-program").stderr
    )
    assert (
        "give a rank or a worker, not both"
        in cli("exec", running_job, "--worker", "0", "--rank", "0", "--", "true").stderr
    )
    assert "is neither PORT nor LOCAL:PORT" in cli("port-forward", running_job, "http").stderr
    run_here("cancel", running_job)
    run_here("wait", running_job)
    ended = cli("exec", running_job, "--", "true")
    assert ended.returncode == 5
    assert ended.stderr.startswith(
        f"Error: job {running_job} is CANCELLED: only the workers of a running job can be entered"
    )
