"""The note on ranks that had ended with code 0 before another one lost them."""

from typing import Any

import pytest

from client_lib.launcher_protocol.outcome import Ended
from client_lib.launcher_protocol.report import rank_as_json
from client_lib.launcher_protocol.script_end import ScriptEnd
from client_lib.spec.states import Reason
from client_lib.spec.wire import Failure
from server_stub.failures.causes import first_cause
from server_stub.runtimes.lost_peers import finished_peers as note
from server_stub.runtimes.verdict import Stage, WorkerStatus, verdict

LOST = "RuntimeError: Connection closed by peer [127.0.0.1]:29990"
HEAD = "Traceback (most recent call last):\n"
TRAIN = '  File "/home/ann/train.py", line 6, in <module>\n    main()\n'
STEP = '  File "/home/ann/loop/steps.py", line 31, in step\n    work()\n'
TORCH = '  File "/env/lib/python3.11/site-packages/torch/{}", line 83, in {}\n    pass\n'
WRAPPER = TORCH.format("distributed/c10d_logger.py", "wrapper")
ALL_REDUCE = WRAPPER + TORCH.format("distributed/distributed_c10d.py", "all_reduce")
BACKWARD = TORCH.format("_tensor.py", "backward") + TORCH.format(
    "autograd/graph.py", "_engine_run_backward"
)
FORWARD = TORCH.format("nn/modules/module.py", "_wrapped_call_impl") + TORCH.format(
    "nn/parallel/distributed.py", "forward"
)
DURING = "\nDuring handling of the above exception, another exception occurred:\n\n"


def lost(traceback: str | None = HEAD + TRAIN + ALL_REDUCE + LOST, **fields: Any) -> Ended:
    return Ended(0, 1, None, 0.0, 10.2, 10.0, False, True, LOST, traceback, [])._replace(**fields)


def done(rank: int, at: float = 10.1, **fields: Any) -> Ended:
    return Ended(rank, 0, None, 0.0, at, at, False, False, None, None, [])._replace(**fields)


@pytest.mark.parametrize(
    ("traceback", "place"),
    [
        (HEAD + TRAIN + ALL_REDUCE + LOST, "was in all_reduce (train.py:6)"),
        (HEAD + TRAIN + STEP + ALL_REDUCE + LOST, "was in all_reduce (steps.py:31)"),
        (HEAD + TRAIN + BACKWARD + LOST, "was in backward (train.py:6)"),
        (HEAD + TRAIN + FORWARD + LOST, "was in forward (train.py:6)"),
        (HEAD + TRAIN + LOST, "was at train.py:6"),
        (HEAD + TRAIN + WRAPPER + LOST, "was at train.py:6"),
        (
            HEAD + TRAIN + ALL_REDUCE + LOST + DURING + HEAD + STEP + "KeyError: 1",
            "was in all_reduce (train.py:6)",
        ),
        (HEAD + ALL_REDUCE + LOST, "lost its connection"),
        (None, "lost its connection"),
    ],
)
def test_it_names_the_call_and_the_line_of_the_user(traceback: str | None, place: str) -> None:
    told = note(lost(traceback), [lost(traceback), done(1)])
    assert told == f"rank 1 had ended with code 0 when rank 0 {place}: does it have less data?"


@pytest.mark.parametrize(
    ("count", "who"),
    [(1, "rank 1 had"), (3, "ranks 1, 2, 3 had"), (4, "4 ranks had")],
    ids=["one", "some", "many"],
)
def test_it_names_up_to_three_ranks(count: int, who: str) -> None:
    told = note(lost(), [done(rank) for rank in range(count, 0, -1)])
    assert told
    assert told.startswith(who)
    assert told.endswith("does it have less data?" if count == 1 else "do they have less data?")


@pytest.mark.parametrize(
    "ranks",
    [
        [lost(lost_peer=False), done(1)],
        [lost(), done(1, at=13.0)],
        [lost(), done(1, stopped_by_us=True)],
        [lost(), done(1, exit_code=3)],
        [lost(), done(1, exit_code=None, signal=9)],
    ],
    ids=["an error of its own", "ended later", "was stopped", "failed", "was killed"],
)
def test_no_note_where_no_rank_had_succeeded_before(ranks: list[Ended]) -> None:
    assert note(ranks[0], ranks) is None


@pytest.mark.parametrize(
    "workers", [[[lost(), done(1)]], [[lost()], [done(1)]]], ids=["one worker", "two workers"]
)
def test_it_is_the_message_and_stands_before_the_exception(workers: list[list[Ended]]) -> None:
    found = verdict(
        [_worker(number, *ranks) for number, ranks in enumerate(workers)],
        stopped=False,
        lost_first=False,
    )
    told = (
        "rank 1 had ended with code 0 when rank 0 was in all_reduce (train.py:6): does it have "
        "less data?"
    )
    assert found.message == f"rank 0 ended with exit code 1: {told}"
    assert found.first_failing
    assert found.first_failing.exception == f"{told}\n{LOST}"


# --- what the ranks did before

STEP_7 = "all_reduce (train.py:7)"
SAVE = "barrier in save_checkpoint (train.py:4)"
LAST = "barrier (train.py:9)"


def script(
    places: dict[str, int], collectives: int | None = None, group: str = "gloo:0"
) -> ScriptEnd:
    return ScriptEnd(None, group, collectives or sum(places.values()), places)


ENTERED = {STEP_7: 5, LAST: 2}


@pytest.mark.parametrize(
    ("first", "others", "told"),
    [
        (
            script({STEP_7: 5, SAVE: 1, LAST: 2}),
            [script(ENTERED), script(ENTERED)],
            f"rank 0 made 8 collectives, ranks 1, 2 made 7: the extra one is {SAVE}, which only "
            "rank 0 entered",
        ),
        (
            script({STEP_7: 5, SAVE: 3, LAST: 2}),
            [script(ENTERED)],
            f"rank 0 made 10 collectives, rank 1 made 7: the 3 extra ones are {SAVE}, which only "
            "rank 0 entered",
        ),
        (  # the recorder has the newest collectives alone
            script({STEP_7: 1990, SAVE: 1, LAST: 9}, 5001),
            [script({STEP_7: 1991, LAST: 9}, 5000)],
            f"rank 0 made 5001 collectives, rank 1 made 5000: the extra one is {SAVE}, which only "
            "rank 0 entered",
        ),
    ],
)
def test_a_collective_of_some_ranks_is_named_with_its_place(
    first: ScriptEnd, others: list[ScriptEnd], told: str
) -> None:
    one = lost(script_end=first)
    ranks = [one, *(done(n, script_end=end) for n, end in enumerate(others, 1))]
    found = note(one, ranks) or ""
    assert found.startswith(f"{told}; rank")
    assert "less data" not in found
    cause = first_cause(Failure(rank=0, exit_code=1, exception=f"{found}\n{LOST}"))
    assert cause
    assert cause.cause.symptom == "makes a collective that other ranks do not make"


@pytest.mark.parametrize(
    ("first", "other"),
    [
        (script({STEP_7: 4}), script({STEP_7: 3})),
        (script({STEP_7: 4, SAVE: 1}), script({STEP_7: 3})),
        (script({SAVE: 1, STEP_7: 4}), script({STEP_7: 4}, group="gloo:3")),
        (script({SAVE: 1}, 5), None),
        (None, script({STEP_7: 3})),
    ],
    ids=["one step less", "one step less, too", "another group", "not told", "old launcher"],
)
def test_no_place_is_named_that_does_not_explain_the_difference(
    first: ScriptEnd | None, other: ScriptEnd | None
) -> None:
    one = lost(script_end=first)
    told = note(one, [one, done(1, script_end=other)]) or ""
    assert told.endswith("(train.py:6): does it have less data?")


def test_all_ranks_that_entered_the_extra_collective_are_named() -> None:
    more = script({STEP_7: 5, SAVE: 1})
    one = lost(script_end=more)
    ranks = [one, lost(rank=2, script_end=more), done(1, script_end=script({STEP_7: 5}))]
    assert (note(one, ranks) or "").startswith("ranks 0, 2 made 6 collectives, rank 1 made 5: ")


def test_an_exit_in_a_loop_is_named_with_the_last_line_of_its_rank() -> None:
    left = done(
        1,
        script_end=ScriptEnd("train.py:4"),
        last_lines=[
            "step 3",
            "preempted, saving",
            "[rank1]:[W1129 07:15:22.1 PG.cpp:1] Warning: x",
        ],
    )
    told = note(lost(), [lost(), left])
    assert told == (
        "rank 1 had ended with code 0 when rank 0 was in all_reduce (train.py:6): rank 1 left a "
        "loop by an exit (train.py:4). Its last line: 'preempted, saving'"
    )
    cause = first_cause(Failure(rank=0, exit_code=1, exception=f"{told}\n{LOST}"))
    assert cause
    assert cause.cause.symptom == "lost a rank that had left a loop by an exit"


def test_the_last_line_of_the_rank_that_ended_first_is_shown() -> None:
    ranks = [lost(), done(1, at=10.05, last_lines=["b"]), done(2, at=10.0, last_lines=["a" * 300])]
    told = note(lost(), ranks) or ""
    assert told.endswith(f"do they have less data? The last line of rank 2: '{'a' * 99}\u2026'")


def _worker(number: int, *ranks: Ended) -> WorkerStatus:
    failed = next((rank for rank in ranks if rank.failed), None)
    report: Any = {
        "reason": str(Reason.EXIT_CODE if failed else Reason.COMPLETED),
        "message": f"rank {failed.rank} ended with exit code 1: {LOST}"
        if failed
        else "every rank ended with exit code 0",
        "first_failing_rank": failed.rank if failed else None,
        "ended_at": "2026-11-21T10:00:00+00:00",
        "ranks": [rank_as_json(rank) for rank in ranks],
    }
    return WorkerStatus(number, Stage.ENDED, "host", report)
