"""The stacks of running processes, as a launcher takes them."""

import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from client_lib.durable import read_json
from client_lib.launcher_protocol import control
from client_lib.launcher_protocol.directory import STACKS
from client_lib.launcher_protocol.plan import RANK_VARIABLES
from client_lib.worker import stacks
from client_lib.worker.rank_runner import answers, this_rank
from tests.kit.interpreters import EACH_PYTHON
from tests.kit.waiting import until
from tests.worker.conftest import Worker

pytestmark = pytest.mark.process

Make = Callable[..., Worker]

TWO_RANKS = """
    import os, sys, time
    def waits():
        print("runs", flush=True)
        time.sleep(1000)
    def loops():
        print("runs", flush=True)
        while True:
            pass
    waits() if os.environ["RANK"] == "0" else loops()
"""


BLOCKS = TWO_RANKS.replace(
    '    print("runs"',
    "    import signal\n        signal.pthread_sigmask(signal.SIG_BLOCK, [50])\n        "
    'print("runs"',
    1,
)


def taken(worker: Worker) -> list[dict[str, Any]]:
    assert worker.connection
    worker.connection.send(control.order(control.STACKS))
    while (event := worker.event()) != control.STACKS:
        assert event is not None, "the launcher has ended"
    found = read_json(worker.directory.stacks_taken)
    assert found is not None
    processes: list[dict[str, Any]] = found["processes"]
    return processes


def runs(worker: Worker, ranks: int = 1) -> Worker:
    worker.start().go()
    until(
        lambda: sum(record.text == "runs" for record in worker.records()) == ranks, "all ranks run"
    )
    return worker


def test_both_sides_use_the_same_signal_and_folder() -> None:
    assert answers.STACKS_SIGNAL == stacks.SIGNAL
    assert f'"{STACKS}"' in Path(this_rank.__file__).read_text()


@EACH_PYTHON
def test_a_rank_that_sleeps_in_c_and_one_that_loops(worker: Make, python: str) -> None:
    first, second = taken(runs(worker(TWO_RANKS, processes_per_worker=2, python=python), 2))
    assert (first["rank"], second["rank"]) == (0, 1)
    assert 'train.py", line 5 in waits' in first["dump"]
    assert " in loops\n" in second["dump"]
    assert second["state"] == "R"


def test_a_rank_that_holds_the_interpreters_lock_in_c(worker: Make) -> None:
    one = worker(
        """
        import ctypes
        def in_c():
            print("runs", flush=True)
            while True:  # sleep(3) returns at a signal
                ctypes.PyDLL(None).sleep(1000)
        in_c()
        """
    )
    (only,) = taken(runs(one))
    assert 'train.py", line 6 in in_c' in only["dump"]


def test_the_one_process_of_a_python_line_which_sees_no_rank(worker: Make) -> None:
    line: dict[str, Any] = {
        "environment": {**os.environ, RANK_VARIABLES: "0"},
        "user_variables": [RANK_VARIABLES],
    }
    script = """
        import os, time
        print("RANK" in os.environ or "runs", flush=True)
        time.sleep(1000)
    """
    (only,) = taken(runs(worker(script, **line)))
    assert only["rank"] == 0
    assert "train.py" in only["dump"]


@pytest.mark.parametrize("taken_before", [False, True])
def test_a_launcher_without_free_descriptors_answers_and_goes_on(
    worker: Make, taken_before: bool
) -> None:
    one = runs(worker(TWO_RANKS, processes_per_worker=2), 2)
    if taken_before:
        taken(one)
    assert one.process
    assert one.connection
    limits = resource.prlimit(one.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(one.process.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
    one.connection.send(control.order(control.STACKS))
    assert one.event() == control.STACKS
    resource.prlimit(one.process.pid, resource.RLIMIT_NOFILE, limits)
    assert read_json(one.directory.stacks_taken) is None
    assert len(taken(one)) == 2


def test_stacks_are_taken_again_and_all_threads_are_shown(worker: Make) -> None:
    one = runs(
        worker(
            """
            import threading, time
            def helper(): time.sleep(1000)
            threading.Thread(target=helper, daemon=True).start()
            print("runs", flush=True)
            helper()
            """
        )
    )
    for _ in range(3):
        (only,) = taken(one)
        assert only["dump"].count("(most recent call first)") == 2
        assert only["dump"].count(" in helper\n") == 2


FORKED = """
    import os, time
    def child(number):
        time.sleep(1000)
    for number in range(3):
        if os.fork() == 0:
            child(number)
    print("runs", flush=True)
    os.wait()
"""


def test_forked_children_have_stacks_of_their_own(worker: Make) -> None:
    rank, *children = taken(runs(worker(FORKED)))
    assert len(children) == 3
    assert {each["parent"] for each in children} == {rank["pid"]}
    assert " in child\n" not in rank["dump"]
    assert all(each["rank"] == 0 and each["dump"].count(" in child\n") == 1 for each in children)


def test_a_child_of_another_program_is_shown_without_stacks_and_survives(worker: Make) -> None:
    one = worker(
        """
        import subprocess, sys
        child = subprocess.Popen(["sleep", "1000"])
        print("runs", flush=True)
        child.wait()
        """
    )
    for _ in range(2):
        rank, child = taken(runs(one) if one.process is None else one)
        assert rank["dump"]
        assert child["dump"] is None
        assert (child["name"], child["state"]) == ("sleep", "S")


@pytest.mark.parametrize(
    "fields", [{"python": None, "command": ["sleep", "1000"]}, {"rank_runner": False}]
)
def test_a_rank_without_the_rank_runner_is_described_and_survives(
    worker: Make, fields: dict[str, Any]
) -> None:
    one = worker("import time; time.sleep(1000)", **fields)
    one.start().go()
    for _ in range(2):
        (only,) = taken(one)
        assert (only["rank"], only["dump"]) == (0, None)
        assert only["cpu_s"] >= 0
        assert "no handler" in only["why"]


def test_a_script_with_signals_and_a_faulthandler_of_its_own_keeps_them(worker: Make) -> None:
    one = worker(
        """
        import faulthandler, os, signal, sys, time
        faulthandler.enable()
        faulthandler.register(signal.SIGUSR1, file=sys.stdout)
        signal.signal(signal.SIGUSR2, lambda *_: print("own", flush=True))
        print("runs", flush=True)
        while True:
            time.sleep(1000)
        """
    )
    (only,) = taken(runs(one))
    assert "train.py" in only["dump"]
    os.kill(only["pid"], signal.SIGUSR1)
    os.kill(only["pid"], signal.SIGUSR2)
    one.waits_for("own")
    one.waits_for("most recent call first")


def test_a_script_that_removes_the_handler_is_said_to_have_none(worker: Make) -> None:
    one = worker(
        f"""
        import faulthandler, time
        faulthandler.unregister({stacks.SIGNAL})
        print("runs", flush=True)
        time.sleep(1000)
        """
    )
    (only,) = taken(runs(one))
    assert (only["dump"], only["why"]) == (None, "it has no handler for stacks any more")


def test_a_script_that_has_closed_all_descriptors_gets_no_signal(worker: Make) -> None:
    """The handler would write into the file that has got the descriptor's number."""
    one = worker(
        """
        import os, time
        os.closerange(3, 1000)
        data = [open("data", "w") for _ in range(200)]
        print("runs", flush=True)
        time.sleep(1000)
        """
    )
    (only,) = taken(runs(one))
    assert only["dump"] is None
    assert (one.folder / "data").read_text() == ""


def test_a_stopped_rank_does_not_delay_the_others(worker: Make) -> None:
    one = runs(worker(TWO_RANKS, processes_per_worker=2), 2)
    first, _ = taken(one)
    os.kill(first["pid"], signal.SIGSTOP)
    first, second = taken(one)
    assert (first["state"], first["dump"]) == ("T", None)
    assert first["why"] == "it is stopped by a signal"
    assert " in loops\n" in second["dump"]
    os.kill(first["pid"], signal.SIGCONT)
    first, second = taken(one)
    assert first["dump"].count(" in waits\n") == 1


def test_a_rank_that_does_not_answer_does_not_delay_the_others(worker: Make) -> None:
    one = runs(worker(BLOCKS, processes_per_worker=2), 2)
    first, second = taken(one)
    assert first["dump"] is None
    assert "did not answer" in first["why"]
    assert " in loops\n" in second["dump"]


def test_nothing_is_taken_with_observation_switched_off(worker: Make) -> None:
    one = runs(worker(TWO_RANKS, processes_per_worker=2, observe=False), 2)
    assert one.connection
    one.connection.send(control.order(control.STACKS))
    assert one.event() == control.STACKS
    assert read_json(one.directory.stacks_taken) is None
    assert not os.path.exists(one.directory.stacks)


def test_a_stop_after_silence_takes_the_stacks_first(worker: Make) -> None:
    # one does not answer, and must not hold up the stop
    one = runs(worker(BLOCKS, processes_per_worker=2), 2)
    time.sleep(10.5)
    began = time.monotonic()
    one.stop(20.0)
    one.stop(0.5)  # as an order of the server and a signal to the agent may come together
    blocking, looping = one.report()["stacks"]
    assert time.monotonic() - began < 10.0
    assert blocking["dump"] is None
    assert " in loops\n" in looping["dump"]


@pytest.mark.parametrize(
    "fields", [{}, {"observe": False}], ids=["printed before", "observe=False"]
)
def test_a_stop_takes_no_stacks(worker: Make, fields: dict[str, bool]) -> None:
    one = runs(worker(TWO_RANKS, processes_per_worker=2, **fields), 2)
    if fields:
        time.sleep(10.5)
    one.stop(0.5)
    assert "stacks" not in one.report()


def test_the_worker_ends_as_ever_while_stacks_are_taken(worker: Make) -> None:
    one = runs(worker(TWO_RANKS, processes_per_worker=2), 2)
    first = taken(one)[0]
    os.kill(first["pid"], signal.SIGSTOP)
    assert one.connection
    one.connection.send(control.order(control.STACKS))
    one.stop(0.0)
    assert one.report()["reason"] == "Cancelled"
