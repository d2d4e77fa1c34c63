"""One rank is guilty, and every view of a failed job names it: message, failure,
digest, explanation, exception.
"""

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from client_lib.errors import JobFailed
from client_lib.launcher_protocol import exceptions, outcome
from client_lib.launcher_protocol.outcome import is_peer_loss
from client_lib.launcher_protocol.plan import WorkerPlan
from client_lib.launcher_protocol.report import Report, as_json
from client_lib.launcher_protocol.termination import TERMINATION_MESSAGE_MAX, termination_message
from client_lib.reports import explanation
from client_lib.spec.job import JobSpec
from client_lib.spec.request import CodeInPlace
from client_lib.spec.states import State
from client_lib.spec.wire import JobInfo
from client_lib.worker.rank_end import ended
from client_lib.worker.ranks import Exit
from client_lib.worker.worker_log import Printed
from server_stub.runtimes.kube.observe.inventory import read_digest
from server_stub.runtimes.verdict import Stage, Verdict, WorkerStatus, verdict
from tests.failures.endings import ABORTS, CHAINS, LOST_PEER, OWN
from tests.kit.examples import examples

T0 = datetime(2026, 11, 22, tzinfo=timezone.utc)
START = T0.timestamp()


@pytest.mark.parametrize("text", LOST_PEER.values(), ids=LOST_PEER)
def test_a_rank_that_lost_its_peer_is_not_guilty(text: str) -> None:
    assert is_peer_loss(None, text, None, [])
    assert is_peer_loss(None, None, None, ["before", text.splitlines()[0]])
    assert (
        _named(
            _report(
                0,
                _rank(0, failed_s=0.2, exception=text),
                _rank(1, failed_s=0.5, exception=OWN["plain"]),
            )
        )
        == 1
    )


@pytest.mark.parametrize("text", OWN.values(), ids=OWN)
def test_a_rank_with_an_error_of_its_own_is_guilty(text: str) -> None:
    assert not is_peer_loss(None, text, None, [])
    victim = _rank(0, failed_s=0.2, exception=LOST_PEER["gloo, closed"])
    assert _named(_report(0, victim, _rank(1, failed_s=0.5, exception=text))) == 1


@pytest.mark.parametrize(("traceback", "exception", "lost"), CHAINS.values(), ids=CHAINS)
def test_the_first_exception_of_a_chain_counts(traceback: str, exception: str, lost: bool) -> None:
    assert is_peer_loss(None, exception, traceback, []) is lost
    found, chain, _ = exceptions.exception_of_lines(["epoch 1", *traceback.splitlines()])
    assert is_peer_loss(None, found, chain, []) is lost


def test_the_first_exception_of_a_chain_counts_also_if_it_is_long(tmp_path: Path) -> None:
    own = "RuntimeError: Error(s) in loading state_dict\n" + "\tsize mismatch\n" * 10_000
    lost = "RuntimeError: Connection closed by peer"
    trace = f'Traceback:\n  File "a"\n{own}{exceptions.CHAINED[0]}Traceback:\n  File "b"\n{lost}'
    text = {"message": {"message": lost, "extraInfo": {"py_callstack": trace, "raised_at": 9.0}}}
    (tmp_path / "0.json").write_text(json.dumps(text))
    assert not ended(
        Exit(0, 1, None, 1.0, 10.0, None), str(tmp_path / "0.json"), Printed([], 10.0), ""
    ).lost_peer


@pytest.mark.parametrize(("lines", "lost"), ABORTS.values(), ids=ABORTS)
def test_an_abort_is_judged_by_the_cpp_exception(lines: list[str], lost: bool) -> None:
    assert is_peer_loss(6, None, None, lines) is lost
    assert not is_peer_loss(11, None, None, lines)


@pytest.mark.parametrize("text", LOST_PEER.values(), ids=LOST_PEER)
def test_all_views_name_the_rank_that_raised_though_its_peer_was_gone_first(text: str) -> None:
    guilty = _rank(0, failed_s=0.5, exception="KeyError: 'learning_rate'")
    for workers in (
        [_report(0, guilty, _rank(1, failed_s=0.2, exception=text))],
        [_report(0, guilty), _report(1, _rank(1, failed_s=0.2, exception=text))],
    ):
        _assert_all_views_name(0, workers)


@pytest.mark.parametrize(
    ("raised_s", "by_us", "code"),
    [(0.5, False, 1), (1.2, True, None)],
    ids=["before it was stopped", "because it was stopped"],
)
def test_a_rank_that_raised_before_it_was_stopped_failed_by_itself(
    tmp_path: Path, raised_s: float, by_us: bool, code: int | None
) -> None:
    file = tmp_path / "error.json"
    extra = {"py_callstack": "Traceback", "raised_at": START + raised_s}
    file.write_text(json.dumps({"message": {"message": "KeyError: 1", "extraInfo": extra}}))
    exit = Exit(1, None, 15, START, START + 1.5, START + 1.0)
    rank = ended(exit, str(file), Printed([[], []], START), "ann")
    assert (rank.stopped_by_us, rank.exit_code, rank.signal) == (by_us, code, None if code else 15)
    assert rank.failed_at == START + raised_s
    victim = _rank(0, failed_s=0.9, exception=LOST_PEER["gloo, closed"])
    assert _named(_report(0, victim, rank)) == (0 if by_us else 1)
    assert _named(_report(0, victim), _report(1, rank, cancelled=True)) == (0 if by_us else 1)


def test_a_handled_exception_makes_no_stopped_rank_guilty() -> None:
    victim = _rank(0, failed_s=8.0, exception=LOST_PEER["gloo, closed"])
    lines = ["Traceback (most recent call last):", '  File "a"', "KeyError: 1"]
    exit = Exit(1, None, 15, START, START + 9.0, START + 8.1)
    for then, until in ((["epoch 1"] * 9, 8.0), ([], -5.0)):  # it went on, or was silent for long
        stopped = ended(exit, "/nowhere", Printed([[], [*lines, *then]], START + until), "ann")
        assert _named(_report(0, victim, stopped)) == 0
    raised = ended(exit, "/nowhere", Printed([[], lines], START + 7.8), "ann")
    assert _named(_report(0, victim, raised)) == 1


def test_a_report_of_an_older_launcher_is_judged_by_its_texts_and_ends() -> None:
    report = _report(
        0, _rank(0, failed_s=0.2, exception=LOST_PEER["store, clients"]), _rank(1, failed_s=0.5)
    )
    for rank in report["ranks"]:
        del rank["failed_at"], rank["lost_peer"]
    assert _named(report) == 1


# --- generated reports


def _rank(
    number: int,
    *,
    failed_s: float | None = None,
    ending_s: float = 0.0,
    exception: str | None = None,
    signal: int | None = None,
    stopped_s: float | None = None,
) -> outcome.Ended:
    """A rank that fails `failed_s` after the start, is gone `ending_s` later, or
    is stopped at `stopped_s`.
    """
    at = failed_s if failed_s is not None else 10.0 if stopped_s is None else stopped_s
    gone = at + ending_s
    code: int | None
    by: int | None
    stopped_at: float | None
    if stopped_s is not None and gone >= stopped_s:
        code, by, gone, stopped_at = None, 15, max(at, stopped_s), START + stopped_s
    else:
        code, by, stopped_at = (
            (None, signal, None) if signal else (0 if failed_s is None else 1, None, None)
        )
    lines = (
        ["epoch 1"]
        if exception is None
        else ["Traceback (most recent call last):", '  File "a"', exception]
    )
    printed_at = at if failed_s is not None else 0.0
    exit = Exit(number, code, by, START, START + gone, stopped_at)
    return ended(exit, "/nowhere", Printed([[], lines], START + printed_at), "ann")


def _report(worker: int, *ranks: outcome.Ended, cancelled: bool = False) -> Report:
    fields: dict[str, Any] = dict.fromkeys(WorkerPlan._fields)
    plan = WorkerPlan(**fields | {"worker": worker, "attempt": 1})
    found = outcome.of_ranks(ranks, cancelled, 0)
    end = max(rank.ended_at for rank in ranks)
    return as_json(plan, found, ranks, START, end, 5, 100)


def _judged(reports: list[Report]) -> Verdict:
    workers = [WorkerStatus(report["worker"], Stage.ENDED, "host", report) for report in reports]
    return verdict(workers, stopped=False, lost_first=False)


def _named(*reports: Report) -> int | None:
    first = _judged(list(reports)).first_failing
    return first.rank if first else None


def _assert_all_views_name(rank: int, reports: list[Report]) -> None:
    found = _judged(reports)
    digests = [read_digest(termination_message(report).decode()) for report in reports]
    first = found.first_failing
    assert first
    assert first.rank == rank
    of_worker = next(report for report in reports if report["worker"] == first.worker)
    assert rank in [each["rank"] for each in of_worker["ranks"]]
    assert _judged([each for each in digests if each])[:2] == found[:2]
    assert found.message.startswith(f"rank {rank} ")
    info = JobInfo(
        id="1",
        name="train",
        owner="ann",
        version=1,
        runtime="local",
        spec=JobSpec(script="train.py"),
        code=CodeInPlace(),
        state=State.FAILED,
        reason=found.reason,
        message=found.message,
        created_at=T0,
        finished_at=T0 + timedelta(seconds=20),
        failure=first,
    )
    error = explanation.ended(info)
    assert isinstance(error, JobFailed)
    told = f"rank {rank} on worker {first.worker} ended"
    assert told in str(error)
    explained = explanation.explained(info, [], T0)
    assert told in explained.summary
    assert told in explanation.as_text(explanation.explain(info, [], T0))
    assert explained.failure == first
    assert explained.failure.rank == rank


_TEXTS = st.sampled_from([*LOST_PEER.values(), *OWN.values()]) | st.none()
_SECONDS = st.floats(0, 5).map(lambda seconds: round(seconds, 3))


@st.composite
def _attempts(draw: st.DrawFn) -> list[Report]:
    """The reports of several workers, each with the same number of ranks: some fail,
    the others are stopped then.
    """
    n_workers, each = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    failing = draw(st.sets(st.integers(0, n_workers * each - 1), min_size=1))
    ends: dict[int, dict[str, Any]] = {
        number: {
            "failed_s": draw(_SECONDS),
            "ending_s": draw(st.sampled_from([0.0, 0.1, 0.6])),
            "exception": draw(_TEXTS),
            "signal": draw(st.sampled_from([None, None, 6, 9, 11])),
        }
        for number in failing
    }
    for end in ends.values():
        end["signal"] = None if end["exception"] else end["signal"]
    first_end_s = min(end["failed_s"] + end["ending_s"] for end in ends.values())
    stopped_s = first_end_s + draw(st.sampled_from([0.0, 0.05, 1.0]))
    reports = []
    for worker in range(n_workers):
        numbers = range(worker * each, (worker + 1) * each)
        ranks = [
            _rank(number, **ends.get(number, {}), stopped_s=stopped_s + 0.001) for number in numbers
        ]
        reports.append(_report(worker, *ranks, cancelled=True))
    return reports


@settings(max_examples=examples(300))
@given(_attempts())
def test_all_views_name_the_same_rank(reports: list[Report]) -> None:
    found = _judged(reports).first_failing
    assert found, "the first that ended did so by itself"
    assert found.rank is not None
    assert all(len(termination_message(report)) <= TERMINATION_MESSAGE_MAX for report in reports)
    _assert_all_views_name(found.rank, reports)


@settings(max_examples=examples(300))
@given(_attempts())
def test_no_rank_that_lost_a_peer_comes_before_an_error_of_the_same_moment(
    reports: list[Report],
) -> None:
    found = _judged(reports).first_failing
    assert found
    ranks = [rank for report in reports for rank in report["ranks"] if rank["exit_code"] != 0]
    own = [rank for rank in ranks if not rank["stopped_by_us"]]
    times = [datetime.fromisoformat(str(rank["failed_at"])) for rank in own]
    moment = min(times) + timedelta(seconds=outcome.SAME_MOMENT_S)
    errors = [
        at for rank, at in zip(own, times, strict=True) if at <= moment and not rank["lost_peer"]
    ]
    if errors:
        chosen = next(each for each in ranks if each["rank"] == found.rank)
        assert not chosen["lost_peer"]
        assert datetime.fromisoformat(str(chosen["failed_at"])) == min(errors)
