"""The next step of a gang and the verdict on its end: pure decisions about its workers."""

from typing import Any

import pytest

from client_lib.spec.states import Reason
from client_lib.spec.wire import Failure
from server_stub.runtimes.verdict import Stage, Step, WorkerStatus, ended_at, next_step, verdict


def rank(
    number: int, code: int, second: int, exception: str | None = None, by_us: bool = False
) -> dict[str, Any]:
    return {
        "rank": number,
        "exit_code": code,
        "signal": None,
        "started_at": "2026-11-21T10:00:00.000000+00:00",
        "ended_at": f"2026-11-21T10:00:{second:02}.000000+00:00",
        "stopped_by_us": by_us,
        "exception": exception,
        "traceback": None,
        "last_lines": [],
    }


def ended(number: int, reason: Reason, *ranks: dict[str, Any]) -> WorkerStatus:
    report: Any = {
        "reason": str(reason),
        "message": f"worker {number}: {reason}",
        "exit_code": 0 if reason is Reason.COMPLETED else 1,
        "first_failing_rank": ranks[0]["rank"] if ranks and ranks[0]["exit_code"] else None,
        "ended_at": max((r["ended_at"] for r in ranks), default="2026-11-21T10:00:00+00:00"),
        "ranks": list(ranks),
    }
    return WorkerStatus(number, Stage.ENDED, "host", report)


def at(stage: Stage, number: int = 0) -> WorkerStatus:
    return WorkerStatus(
        number, stage, "host", lost_because="the launcher died" if stage is Stage.LOST else ""
    )


@pytest.mark.parametrize(
    ("stages", "step"),
    [
        ([Stage.STARTING, Stage.READY], Step.WAIT),
        ([Stage.READY, Stage.READY], Step.GO),
        ([Stage.READY, Stage.STARTED], Step.GO),  # the server died between two orders
        ([Stage.READY, Stage.LOST], Step.STOP),
        ([Stage.STARTED, Stage.LOST], Step.STOP),
    ],
)
def test_all_or_none(stages: list[Stage], step: Step) -> None:
    assert next_step([at(stage, n) for n, stage in enumerate(stages)], stopping=False) is step


def test_a_failed_worker_stops_the_others_and_one_that_completed_does_not() -> None:
    assert next_step([ended(0, Reason.CODE_FETCH), at(Stage.READY, 1)], stopping=False) is Step.STOP
    assert next_step([ended(0, Reason.COMPLETED), at(Stage.STARTED, 1)], stopping=False) is Step.GO
    assert next_step([at(Stage.STARTED)], stopping=True) is Step.STOP


def test_all_completed_is_completed_even_if_a_stop_came_too_late() -> None:
    workers = [ended(0, Reason.COMPLETED, rank(0, 0, 5)), ended(1, Reason.COMPLETED, rank(1, 0, 6))]
    assert verdict(workers, stopped=True, lost_first=False)[0] is Reason.COMPLETED
    assert str(ended_at(workers)) == "2026-11-21 10:00:06+00:00"


def test_the_worker_whose_rank_failed_first_is_the_cause() -> None:
    workers = [
        ended(0, Reason.EXIT_CODE, rank(0, 1, 9)),
        ended(1, Reason.SIGNAL, rank(1, 1, 3)),
        ended(2, Reason.CANCELLED, rank(2, 1, 2, by_us=True)),
    ]
    found = verdict(workers, stopped=False, lost_first=False)
    assert found[:2] == (Reason.SIGNAL, "worker 1: Signal")
    assert found.first_failing
    assert (found.first_failing.worker, found.first_failing.rank) == (1, 1)


def test_a_failure_has_the_code_that_a_shell_would_report() -> None:
    killed = ended(2, Reason.SIGNAL, rank(5, 1, 3) | {"exit_code": None, "signal": 9})
    failure = verdict([killed], stopped=False, lost_first=False).first_failing
    assert failure == Failure(worker=2, rank=5, exit_code=137, signal=9)


def test_a_rank_that_speaks_of_a_lost_peer_is_not_the_cause() -> None:
    workers = [
        ended(0, Reason.EXIT_CODE, rank(0, 1, 3, "RuntimeError: Connection closed by peer")),
        ended(1, Reason.EXIT_CODE, rank(1, 1, 4, "ValueError: bad luck")),
    ]
    assert verdict(workers, stopped=False, lost_first=False)[1] == "worker 1: ExitCode"


def test_a_lost_launcher_is_the_cause_if_it_was_lost_first() -> None:
    workers = [ended(0, Reason.EXIT_CODE, rank(0, 1, 3)), at(Stage.LOST, 1)]
    assert verdict(workers, stopped=False, lost_first=True) == (
        Reason.LAUNCHER_LOST,
        "the launcher died",
        None,
    )
    assert verdict(workers, stopped=False, lost_first=False)[0] is Reason.EXIT_CODE
    stopped = [ended(0, Reason.CANCELLED, rank(0, 1, 3, by_us=True)), at(Stage.LOST, 1)]
    assert verdict(stopped, stopped=False, lost_first=False)[0] is Reason.LAUNCHER_LOST


def test_a_worker_that_its_machine_took_is_the_cause_where_the_others_only_lost_a_peer() -> None:
    gone = WorkerStatus(
        1, Stage.LOST, "host", lost_because="out of memory", lost_reason=Reason.OUT_OF_MEMORY
    )
    victim = ended(0, Reason.EXIT_CODE, rank(0, 1, 3, "RuntimeError: Connection closed by peer"))
    assert verdict([victim, gone], stopped=False, lost_first=False) == (
        Reason.OUT_OF_MEMORY,
        "out of memory",
        None,
    )
    guilty = ended(0, Reason.EXIT_CODE, rank(0, 1, 3, "KeyError: 1"))
    assert verdict([guilty, gone], stopped=False, lost_first=False).reason is Reason.EXIT_CODE
    silent = ended(1, Reason.LAUNCHER_LOST)  # the agent of its pod reports it
    assert verdict([victim, silent], stopped=False, lost_first=False).reason is Reason.LAUNCHER_LOST


@pytest.mark.parametrize("order", [1, -1])
def test_a_worker_that_was_lost_after_another_could_not_start_is_not_the_cause(order: int) -> None:
    workers = [ended(0, Reason.SETUP_FAILED), at(Stage.LOST, 1)][::order]
    assert verdict(workers, stopped=False, lost_first=False).reason is Reason.SETUP_FAILED
    assert verdict(workers, stopped=False, lost_first=True).reason is Reason.LAUNCHER_LOST


def test_a_launcher_that_we_killed_is_not_the_cause() -> None:
    victim = ended(0, Reason.EXIT_CODE, rank(0, 1, 3, "RuntimeError: Connection closed by peer"))
    assert (
        verdict([victim, at(Stage.LOST, 1)], stopped=False, lost_first=False).reason
        is Reason.EXIT_CODE
    )


def test_a_rank_whose_launcher_named_another_one_is_named_by_its_own_end() -> None:
    both = ended(
        0,
        Reason.EXIT_CODE,
        rank(0, 1, 3, "KeyError: 1"),
        rank(1, 1, 2, "RuntimeError: Connection refused"),
    )
    assert both.report
    both.report["first_failing_rank"] = 1
    assert verdict([both], stopped=False, lost_first=False)[:2] == (
        Reason.EXIT_CODE,
        "rank 0 ended with exit code 1: KeyError: 1",
    )


def test_an_ordered_stop_is_the_cause_of_what_failed_after_it() -> None:
    workers = [ended(0, Reason.EXIT_CODE, rank(0, 1, 3)), ended(1, Reason.CANCELLED)]
    assert verdict(workers, stopped=True, lost_first=False)[0] is Reason.CANCELLED


def test_a_worker_is_shown_as_it_is() -> None:
    assert at(Stage.READY).info().state == "starting"
    assert at(Stage.LOST).info().message == "the launcher died"
    assert ended(0, Reason.EXIT_CODE, rank(0, 1, 3)).info().exit_code == 1
