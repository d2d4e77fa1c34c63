"""Logs printed to real files and pipes."""

import fcntl
import io
import os
import struct
import sys
import termios
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from client_lib.log_reading import text_output
from client_lib.log_reading.reader import Params
from client_lib.log_reading.text_output import LogOutput, several_ranks, waits_for
from client_lib.spec.job import JobSpec
from tests.kit.bounds import Bounds
from tests.kit.waiting import until
from tests.log_reading.test_reader import END, STATE, records

SAID = ("- launcher", b"OMP_NUM_THREADS=1")


class Bodies:
    """`Api.open_logs`: each piece is a block that arrives by itself."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = pieces
        self.asked = 0

    def __call__(self, params: Params, *, deadline: float | None = None) -> Iterator[bytes]:
        self.asked += 1
        yield from self.pieces


def test_what_the_launcher_says_is_beside_the_lines(capsys: pytest.CaptureFixture[str]) -> None:
    body, out = STATE + records(SAID, ("0 stdout", b"hello")) + END, io.StringIO()
    LogOutput("train-1", out).write(Bodies(body), {})
    assert out.getvalue() == "[0] hello\n"
    assert capsys.readouterr().err == "job train-1, worker 0: OMP_NUM_THREADS=1\n"


def test_what_the_launcher_says_is_among_the_lines_where_it_is_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = io.StringIO()
    LogOutput("train-1", out).write(Bodies(STATE + records(SAID) + END), {"stream": ["launcher"]})
    assert (out.getvalue(), capsys.readouterr().err) == ("[launcher] OMP_NUM_THREADS=1\n", "")


def test_a_bar_has_the_width_of_its_terminal_if_stdout_is_a_pipe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    # no terminal, as a pipe; pytest's own stdout may be one
    monkeypatch.setattr(sys, "__stdout__", None)
    ours, theirs = os.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
    with os.fdopen(ours, "rb", 0) as screen, os.fdopen(theirs, "w") as stderr:
        LogOutput("train-1", stderr).write(
            Bodies(STATE + records(("0 stderr~", b"#" * 60)) + END), {}
        )
        assert screen.read(100).startswith(b"[0] " + b"#" * 35 + b"\r")


def test_why_a_job_waits_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    waits = b'@state {"state": "PENDING", "reason": "Queued", "message": "%b"}\n'
    body = waits % b"" + waits % b"3 jobs before it" + waits % b"3 jobs before it" + END
    LogOutput("train-1", io.StringIO()).write(Bodies(body), {})
    assert (
        capsys.readouterr().err
        == "job train-1 PENDING (Queued)\njob train-1 PENDING (Queued): 3 jobs before it\n"
    )


def test_that_a_job_hangs_and_goes_on_is_said_and_no_other_change_while_it_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    runs = b'@state {"state": "RUNNING", "reason": "%b", "message": "%b"}\n'
    steps = [
        (b"Running", b""),
        (b"Hung", b"rank 0 waits"),
        (b"Hung", b"rank 0 waits"),
        (b"Running", b"rank 1 moves"),
    ]
    body = (
        b"".join(runs % step for step in steps) + runs % (b"Running", b"worker 2 is silent") + END
    )
    LogOutput("train-1", io.StringIO()).write(Bodies(body), {})
    said = [
        "job train-1 RUNNING (Hung): rank 0 waits",
        "job train-1 RUNNING (Running): rank 1 moves",
    ]
    assert capsys.readouterr().err.splitlines() == said


@pytest.mark.parametrize("buffering", [1, -1], ids=["by line", "by block"])
def test_a_reader_that_goes_away_ends_the_printing(buffering: int) -> None:
    """`python script.py | head -1`: the error of our own output is no broken connection,
    which would be tried again.
    """
    reader, writer = os.pipe()
    os.close(reader)
    # and no end
    bodies = Bodies(STATE, *[records(("0 stdout", b"x" * 100), begin=n * 1000) for n in range(100)])
    with open(writer, "w", buffering) as out:
        with pytest.raises(BrokenPipeError):
            LogOutput("train-1", out, retry_s=5.0).write(bodies, {"follow": "true"})
        with open(os.devnull, "w") as null:
            os.dup2(null.fileno(), writer)  # what is left in the buffer has to go somewhere
    assert bodies.asked == 1


class Quiet:
    """`Api.open_logs`: a job that prints these lines, and nothing more until `ends` is set."""

    def __init__(self, *lines: tuple[str, bytes]) -> None:
        self.lines = lines
        self.ends = threading.Event()

    def __call__(self, params: Params, *, deadline: float | None = None) -> Iterator[bytes]:
        yield STATE + records(*self.lines)
        assert self.ends.wait(10)
        yield END


def test_a_job_that_runs_and_is_silent_is_said_to_start(
    capsys: pytest.CaptureFixture[str], bounds: Bounds
) -> None:
    bounds(text_output, SILENT_S=0.05)
    job = Quiet()
    with ThreadPoolExecutor() as pool:
        look = LogOutput("train-1", io.StringIO(), waits_for="2 workers, starting Python")
        printing = pool.submit(look.write, job, {"follow": "true"})
        said: list[str] = []
        until(lambda: said.append(capsys.readouterr().err) or any(said))
        job.ends.set()
        printing.result()
    assert (
        "".join(said) + capsys.readouterr().err
        == "job train-1 RUNNING: 2 workers, starting Python\n"
    )


def test_a_job_that_speaks_at_once_is_not_said_to_start(
    capsys: pytest.CaptureFixture[str], bounds: Bounds
) -> None:
    bounds(text_output, SILENT_S=10**6)
    job, out = Quiet(("0 stdout", b"loading")), io.StringIO()
    job.ends.set()
    LogOutput("train-1", out, waits_for="2 workers, starting Python").write(job, {"follow": "true"})
    assert (out.getvalue(), capsys.readouterr().err) == ("[0] loading\n", "")
    assert not any(
        isinstance(thread, threading.Timer) and not thread.finished.is_set()
        for thread in threading.enumerate()
    )


@pytest.mark.parametrize(
    ("spec", "age_s", "expected"),
    [
        ({"script": "/a/train.py", "n_workers": 2}, None, "2 workers, starting Python"),
        ({"script": "train(lr=0.1)"}, 5, "1 worker, starting Python"),
        ({"script": "/bin/measure.sh -v", "n_workers": 1}, 5, "1 worker, starting measure.sh"),
        ({"script": "train.py"}, 600, "1 worker, no line yet"),
    ],
)
def test_what_a_silent_job_waits_for(
    spec: dict[str, Any], age_s: float | None, expected: str
) -> None:
    started_at = None if age_s is None else datetime.now(timezone.utc) - timedelta(seconds=age_s)
    assert waits_for(spec, started_at) == expected


def test_lines_that_wait_for_their_twins_appear_although_nothing_follows() -> None:
    job, out = Quiet(("0 stdout", b"loading"), ("1 stdout", b"loading")), io.StringIO()
    with ThreadPoolExecutor() as pool:
        printing = pool.submit(
            LogOutput("train-1", out, collapse=True).write, job, {"follow": "true"}
        )
        until(lambda: out.getvalue() == "[0-1] loading\n")
        job.ends.set()
        printing.result()
    assert out.getvalue() == "[0-1] loading\n"
    assert not any(isinstance(thread, threading.Timer) for thread in threading.enumerate())


def test_lines_of_a_log_that_is_not_followed_wait_for_their_twins_over_a_slow_network() -> None:
    def slow(params: Params, *, deadline: float | None = None) -> Iterator[bytes]:
        yield STATE + records(("0 stdout", b"loading"))
        time.sleep(3 * text_output.COLLAPSE.total_seconds())
        yield records(("1 stdout", b"loading"), begin=1000) + END

    out = io.StringIO()
    LogOutput("train-1", out, collapse=True).write(slow, {})
    assert out.getvalue() == "[0-1] loading\n"


def test_ctrl_c_prints_the_lines_that_wait_for_their_twins() -> None:
    def interrupted(params: Params, *, deadline: float | None = None) -> Iterator[bytes]:
        yield STATE + records(("0 stdout", b"loading"))
        raise KeyboardInterrupt

    out = io.StringIO()
    with pytest.raises(KeyboardInterrupt):
        LogOutput("train-1", out, collapse=True).write(interrupted, {"follow": "true"})
    assert out.getvalue() == "[0] loading\n"


def test_a_reader_that_goes_away_while_lines_wait_ends_the_printing() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    job = Quiet(("0 stdout", b"loading"))
    with open(writer, "w") as out, ThreadPoolExecutor() as pool:
        printing = pool.submit(
            LogOutput("train-1", out, collapse=True).write, job, {"follow": "true"}
        )
        until(
            lambda: not any(isinstance(thread, threading.Timer) for thread in threading.enumerate())
        )
        job.ends.set()
        with pytest.raises(BrokenPipeError):
            printing.result()
        with open(os.devnull, "w") as null:
            os.dup2(null.fileno(), writer)  # what is left in the buffer has to go somewhere


@pytest.mark.parametrize(
    ("spec", "several"),
    [
        ({"n_workers": 2}, True),
        ({"processes_per_worker": 2}, True),
        ({"processes_per_worker": 1}, False),
        ({"instance_type": "cpu.2C.8G"}, False),
        ({"type": "nogpu"}, False),
        ({}, True),
    ],
)
def test_only_what_certainly_is_one_process_prints_without_ranks(
    spec: dict[str, Any], several: bool
) -> None:
    assert several_ranks(spec) is several
    assert several_ranks(JobSpec(script="a.py", **spec).model_dump()) is several
