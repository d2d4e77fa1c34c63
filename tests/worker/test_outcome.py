"""The first failing rank of a worker, its reason, and its report."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from client_lib.launcher_protocol.exceptions import (
    Raised,
    exception_before,
    exception_of_error_file,
    exception_of_lines,
    headline,
    unwrapped,
)
from client_lib.launcher_protocol.outcome import Ended, first_failure, of_ranks
from client_lib.launcher_protocol.report import rank_as_json, rank_of_json
from client_lib.launcher_protocol.script_end import ScriptEnd, script_end_of_text
from client_lib.worker.rank_end import ended, failed_below
from client_lib.worker.ranks import Exit
from client_lib.worker.worker_log import Printed
from server_stub.worker_gateway.report import MAX_BYTES
from tests.worker.conftest import Worker

Make = Callable[..., Worker]


def rank(number: int, **fields: Any) -> Ended:
    values: dict[str, Any] = {
        "rank": number,
        "exit_code": 1,
        "signal": None,
        "started_at": 0.0,
        "ended_at": 10.0,
        "failed_at": 10.0,
        "stopped_by_us": False,
        "lost_peer": False,
        "exception": None,
        "traceback": None,
        "last_lines": [],
    }
    return Ended(**(values | fields))


def first(*ranks: Ended) -> int | None:
    found = first_failure(ranks)
    return found and found.rank


def test_the_earliest_failure_is_the_first() -> None:
    assert first(rank(0, failed_at=5.0), rank(1, failed_at=2.0)) == 1


def test_one_that_was_stopped_is_not_the_cause() -> None:
    stopped = rank(0, exit_code=None, signal=15, stopped_by_us=True, failed_at=1.0)
    assert first(stopped, rank(1)) == 1


def test_of_one_moment_the_one_that_did_not_lose_a_peer() -> None:
    victim = rank(0, lost_peer=True, failed_at=1.0)
    assert first(victim, rank(1, signal=9, exit_code=None, failed_at=1.4)) == 1
    assert first(victim, rank(1, failed_at=9.0)) == 0


def test_nothing_failed() -> None:
    assert first(rank(0, exit_code=0)) is None
    assert of_ranks([rank(0, exit_code=0)], cancelled=False, oom_kills=0)[:2] == (0, "Completed")


@pytest.mark.parametrize(
    ("fields", "oom_kills", "code", "reason", "words"),
    [
        ({"exit_code": 3}, 0, 3, "ExitCode", "exit code 3"),
        ({"exception": "ValueError: x"}, 0, 1, "ExitCode", "ValueError: x"),
        ({"exit_code": None, "signal": 9}, 0, 137, "Signal", "signal 9"),
        ({"exit_code": None, "signal": 9}, 1, 137, "OutOfMemory", "out of memory"),
        ({"exit_code": None, "signal": 11}, 1, 139, "Signal", "signal 11"),
    ],
)
def test_what_a_failure_is_called(
    fields: dict[str, Any], oom_kills: int, code: int, reason: str, words: str
) -> None:
    found = of_ranks([rank(0, **fields)], cancelled=False, oom_kills=oom_kills)
    assert (found.exit_code, found.reason) == (code, reason)
    assert words in found.message


def test_a_child_that_was_killed_for_memory_is_named_beside_the_ranks_own_error() -> None:
    failed = rank(
        0, exception="RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed."
    )
    found = of_ranks([failed], cancelled=False, oom_kills=1, group_kills=1)
    assert (found.reason, found.exit_code) == ("OutOfMemory", 1)
    assert found.message.endswith(
        "Killed.; a process of its worker was killed because the memory limit was reached"
    )
    killed = rank(0, exit_code=None, signal=9)
    assert (
        "its worker" not in of_ranks([killed], cancelled=False, oom_kills=1, group_kills=1).message
    )


def test_stopped_from_outside_is_cancelled_whatever_the_ranks_said() -> None:
    stopped = rank(0, exit_code=None, signal=15, stopped_by_us=True)
    assert of_ranks([stopped], cancelled=True, oom_kills=0).reason == "Cancelled"


def test_a_rank_goes_through_json() -> None:
    one = rank(3, exception="ValueError: x", failed_at=9.25, last_lines=["a"])
    assert rank_of_json(rank_as_json(one)) == one
    told = ScriptEnd("train.py:7", "gloo:0", 3, {"barrier (train.py:4)": 3})
    assert rank_of_json(rank_as_json(one._replace(script_end=told))).script_end == told
    wrong: Any = rank_as_json(one) | {"script_end": [told]}
    assert rank_of_json(wrong) == one
    older: Any = rank_as_json(one)
    del older["script_end"]
    assert rank_of_json(older) == one


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", None),
        ("[1]", None),
        ("[" * 10**5, None),
        ("{}", ScriptEnd()),
        ('{"exited_at": 3, "group": [], "collectives": "9", "places": 1}', ScriptEnd()),
        ('{"collectives": -1, "places": {"a": true, "b": 2}}', ScriptEnd(places={"a": 0, "b": 2})),
        ('{"exited_at": "%s"}' % ("x" * 999), ScriptEnd("x" * 200)),
    ],
)
def test_the_end_of_a_script_is_read_from_any_file(text: str, told: ScriptEnd | None) -> None:
    assert script_end_of_text(text) == told


def test_no_more_than_some_places_of_a_script_are_read() -> None:
    told = script_end_of_text(json.dumps({"places": dict.fromkeys(map(str, range(999)), 1)}))
    assert told
    assert len(told.places) == 64


NOTHING = [
    "",
    "{",
    "[]",
    '{"message": 1}',
    '{"message": {"message": 1}}',
    "null",
    '"x"',
    "[" * 10**5,
]
NOTHING += ['{"message": {"extraInfo": {"rank": 1e999}}}']


@pytest.mark.parametrize("text", NOTHING, ids=range(len(NOTHING)))
def test_an_error_file_that_says_nothing_is_no_exception(text: str, tmp_path: Path) -> None:
    assert exception_of_error_file(text) == Raised()
    (tmp_path / "0.json").write_text(text)
    assert failed_below(str(tmp_path / "0.json"), [], 7) == 7


@pytest.mark.parametrize("time", ["NaN", "-Infinity", "-1e300", "5", "null"])
def test_an_error_file_with_a_time_that_is_none_has_its_message(time: str) -> None:
    text = '{"message": {"message": "KeyError: 1", "extraInfo": {"raised_at": TIME}}}'.replace(
        "TIME", time
    )
    assert exception_of_error_file(text) == Raised("KeyError: 1")


def test_a_report_of_many_ranks_with_long_exceptions_can_be_read(tmp_path: Path) -> None:
    error = "RuntimeError: Error(s) in loading state_dict\n" + "\tsize mismatch\n" * 28000
    text = {
        "message": {
            "message": error,
            "extraInfo": {"py_callstack": "Traceback ...\n" + error, "raised_at": 9.0},
        }
    }
    (tmp_path / "0.json").write_text(json.dumps(text))
    one = ended(Exit(0, 1, None, 1.0, 10.0, None), str(tmp_path / "0.json"), Printed([], 10.0), "")
    assert str(one.exception).startswith("RuntimeError: Error(s) in loading state_dict\n\tsize")
    assert str(one.traceback).startswith(
        "Traceback ...\nRuntimeError: Error(s) in loading state_dict\n\tsize"
    )
    assert len(json.dumps([rank_as_json(one)] * 100)) < MAX_BYTES


def test_a_lost_child_of_a_rank_that_has_printed_nothing_is_told_as_it_is(tmp_path: Path) -> None:
    lost = "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed."
    (tmp_path / "0.json").write_text(json.dumps({"message": {"message": lost, "extraInfo": {}}}))
    exit = Exit(0, 1, None, 1.0, 10.0, None)
    assert ended(exit, str(tmp_path / "0.json"), Printed([], 10.0), "").exception == lost


def test_an_error_file_may_hold_a_bare_message() -> None:
    assert exception_of_error_file('{"message": "bare"}') == Raised("bare")


def test_the_last_traceback_of_the_lines() -> None:
    lines = ["Traceback (most recent call last):", '  File "a"', "KeyError: 1", "", "between"]
    lines += ["Traceback (most recent call last):", '  File "b"', "    x", "ValueError: 2", "after"]
    assert exception_of_lines(lines) == Raised("ValueError: 2", "\n".join(lines[5:9]) + "\n")
    assert exception_of_lines(["Traceback (most recent call last):", "  cut"]) == Raised()
    assert exception_of_lines([]) == Raised()


WRAPPED = """\
FileNotFoundError: Caught FileNotFoundError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/env/torch/utils/data/_utils/worker.py", line 375, in _worker_loop
    data = fetcher.fetch(index)
           ^^^^^^^^^^^^^^^^^^^^
  File "/home/ann/train.py", line 6, in __getitem__
    open("/data/coco/x.jpg")
FileNotFoundError: [Errno 2] No such file or directory: '/data/coco/x.jpg'
"""


@pytest.mark.parametrize(
    ("exception", "own"),
    [
        (
            WRAPPED,
            "FileNotFoundError: [Errno 2] No such file or directory: '/data/coco/x.jpg' (in "
            "DataLoader worker process 0)",
        ),
        (
            "torch.multiprocessing.spawn.ProcessRaisedException: \n\n-- Process 1 terminated with "
            'the following error:\nTraceback (most recent call last):\n  File "a", line 1\n'
            "ValueError: two\nlines\n",
            "ValueError: two (in process 1)\nlines",
        ),
        ("KeyError: 'lr'", "KeyError: 'lr'"),
        ("RuntimeError: Caught KeyError in my hands.\nno more", None),
        ("KeyError: Caught KeyError in x.\nOriginal Traceback (most recent call last):\n  a", None),
    ],
)
def test_an_exception_of_a_child_stands_in_place_of_the_one_that_brings_it(
    exception: str, own: str | None
) -> None:
    assert unwrapped(exception) == (own or exception)


def test_an_exception_of_a_child_is_found_in_the_lines_too() -> None:
    lines = ["Traceback (most recent call last):", '  File "train.py"', *WRAPPED.splitlines()]
    assert exception_of_lines([*lines, "after"]).exception == lines[-1]


def test_the_traceback_of_a_child_comes_before_that_of_its_rank() -> None:
    own = ["Traceback (most recent call last):", '  File "train.py"', "RuntimeError: lost a child"]
    child = ["Traceback (most recent call last):", '  File "/py/multiprocessing/spawn.py"', "E: 1"]
    handled = ["Traceback (most recent call last):", '  File "train.py"', "KeyError: 1", "going on"]
    assert exception_before([*child, *own]).exception == "E: 1"
    assert exception_before([*handled, *own]) == Raised()
    assert exception_before(own) == exception_before([]) == Raised()


def test_an_exception_that_begins_below_its_class_is_told_by_its_text() -> None:
    text = "RuntimeError: \n    An attempt has been made to start a new process before the\n    x\n"
    first = "RuntimeError: An attempt has been made to start a new process before the"
    lines = ["Traceback (most recent call last):", '  File "a"', *text.splitlines(), "after"]
    found = exception_of_lines(lines)
    assert found.exception
    assert headline(found.exception) == headline(text) == first
    assert of_ranks([rank(0, exception=text)], cancelled=False, oom_kills=0).message.endswith(first)
    assert [headline(said) for said in ("KeyError: 1\nx", "E:", "")] == ["KeyError: 1", "E:", ""]


SCRIPT = (
    "def f():\n    raise ValueError('what is wrong')\nfor i in range(100): print('line', i)\nf()\n"
)


@pytest.mark.parametrize("rank_runner", [True, False])
def test_the_report_has_exception_traceback_and_the_last_lines(
    worker: Make, rank_runner: bool
) -> None:
    report = worker(SCRIPT, rank_runner=rank_runner).run()
    (one,) = report["ranks"]
    assert one["exception"] == "ValueError: what is wrong"
    assert one["traceback"].startswith("Traceback (most recent call last):\n")
    assert "in f\n" in one["traceback"]
    assert len(one["last_lines"]) == 50
    assert "line 99" in one["last_lines"]
    assert one["last_lines"][-1] == "ValueError: what is wrong"
    assert "ValueError: what is wrong" in report["message"]


@pytest.mark.process
def test_torchs_mark_of_the_rank_hides_no_exception(worker: Make) -> None:
    script = """
        import atexit, os, time, torch.distributed as dist
        atexit.register(time.sleep, 0.3)  # a process that takes long to end after its traceback
        store = "file://" + os.path.abspath("store")
        dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
        try:
            {}["learning_rate"]
        except KeyError as error:
            raise ValueError("no rate") from error
    """
    report = worker(script, rank_runner=False).run()
    (one,) = report["ranks"]
    assert one["last_lines"][-1] == "[rank0]: ValueError: no rate"
    assert report["message"] == "rank 0 ended with exit code 1: ValueError: no rate"
    assert one["traceback"].splitlines()[0] == "Traceback (most recent call last):"
    assert (
        "KeyError: 'learning_rate'\n\nThe above exception was the direct cause" in one["traceback"]
    )
    assert one["failed_at"] < one["ended_at"]


def test_an_error_file_of_torchs_own_decorator_is_read(worker: Make) -> None:
    script = """
        import json, os, sys
        extra = {"py_callstack": "its stack"}
        message = {"message": "MyError: told by the script", "extraInfo": extra}
        with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
            json.dump({"message": message}, file)
        sys.exit(5)
    """
    (one,) = worker(script).run()["ranks"]
    assert (one["exit_code"], one["exception"], one["traceback"]) == (
        5,
        "MyError: told by the script",
        "its stack",
    )


def test_a_rank_that_ended_well_reports_no_exception(worker: Make) -> None:
    script = (
        "import traceback\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    traceback.print_exc()\n"
    )
    (one,) = worker(script).run()["ranks"]
    assert (one["exit_code"], one["exception"]) == (0, None)
