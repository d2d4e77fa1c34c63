"""The log between the launcher and those who carry it away, and the digest of a report."""

import json
from pathlib import Path
from typing import Any

from hypothesis import given, settings, strategies as st

from client_lib.launcher_protocol.log_segments import SegmentWriter
from client_lib.launcher_protocol.report import Report
from client_lib.launcher_protocol.termination import TERMINATION_MESSAGE_MAX, termination_message
from client_lib.worker.pod.log_carriers import LogPiece, Spool
from tests.worker_gateway.test_log_file import record, records


def written(folder: Path, *blocks: bytes, segment: int = 1000) -> SegmentWriter:
    writer = SegmentWriter(str(folder), 2**62, segment)
    for block in blocks:
        writer.add(block)
        assert writer.flush()
    return writer


def all_of(spool: Spool, at: int = 0) -> list[LogPiece]:
    pieces = []
    while (piece := spool.read(at)) is not None:
        pieces.append(piece)
        at = piece.offset + len(piece.data)
    return pieces


def test_what_all_have_done_with_is_deleted_but_not_what_one_needs_again(tmp_path: Path) -> None:
    written(tmp_path, *(records(n, n + 50) for n in range(0, 500, 50)))
    spool = Spool(str(tmp_path), 2**30)
    assert b"".join(piece.data for piece in all_of(spool)) == records(0, 500)
    spool.tidy(0)
    assert len(list(tmp_path.iterdir())) == 10
    spool.tidy(len(records(0, 120)))
    assert len(list(tmp_path.iterdir())) == 8
    # the server had lost power: it asks again for what it lost
    assert b"".join(piece.data for piece in all_of(spool, len(records(0, 200)))) == records(
        200, 500
    )


def test_half_a_record_is_not_read_yet(tmp_path: Path) -> None:
    written(tmp_path, record(0) + record(1)[:10])
    spool = Spool(str(tmp_path), 2**30)
    assert [piece.data for piece in all_of(spool)] == [record(0)]


def test_over_the_limit_the_oldest_go_and_the_next_read_says_so(tmp_path: Path) -> None:
    writer = written(tmp_path, *(records(n, n + 50) for n in range(100, 600, 50)), segment=1)
    spool = Spool(str(tmp_path), writer.offset // 2)
    dropped = spool.tidy(0)
    left = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert 0 < left <= 0.8 * writer.offset / 2
    assert dropped == writer.offset - left
    first, *others = all_of(spool)
    assert (first.offset, first.gap) == (dropped, True)
    assert not any(piece.gap for piece in others)
    assert others[-1].data.endswith(record(599))


def test_the_end_of_a_log_whose_writer_died_is_behind_its_last_whole_record(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path), 2**30)
    assert spool.end() == (0, 0)
    written(tmp_path, records(0, 7) + record(7)[:10])
    assert spool.end() == (7, len(records(0, 7)))


text = st.text(max_size=3000)
rank = st.fixed_dictionaries(
    {
        "rank": st.integers(0, 9),
        "exit_code": st.sampled_from([0, 1, None]),
        "signal": st.sampled_from([None, 9]),
        "exception": st.one_of(st.none(), text),
        "traceback": st.one_of(st.none(), text),
        "last_lines": st.lists(text, max_size=50),
    }
)
reports = st.fixed_dictionaries(
    {
        "exit_code": st.just(1),
        "reason": st.just("ExitCode"),
        "message": text,
        "first_failing_rank": st.one_of(st.none(), st.integers(0, 9)),
        "ranks": st.lists(rank, max_size=64),
        "log_end_seq": st.integers(0, 2**53),
    }
)


@settings(deadline=None)  # the disk of a busy machine may take long
@given(reports)
def test_every_digest_is_a_report_that_fits(report: Report) -> None:
    before = json.dumps(report)
    told = termination_message(report)
    assert len(told) <= TERMINATION_MESSAGE_MAX
    assert json.loads(told).keys() == report.keys()
    assert json.loads(told)["log_end_seq"] == report["log_end_seq"]
    assert json.dumps(report) == before
    with_stacks: Any = {**report, "stacks": [{"dump": "x" * 9999}]}
    assert termination_message(with_stacks) == told


def test_a_digest_names_fewer_files_that_were_not_kept_than_there_are() -> None:
    left = [
        {"path": f"checkpoints/{'x' * 90}/{n}", "size": n, "why": "\u6570" * 60} for n in range(20)
    ]
    report: Any = {
        "exit_code": 0,
        "message": "",
        "first_failing_rank": None,
        "ranks": [],
        "outputs": {"kept": 1, "left_out": left, "left_out_count": 70},
    }
    told = termination_message(report)
    assert len(told) <= TERMINATION_MESSAGE_MAX
    outputs = json.loads(told)["outputs"]
    assert (outputs["kept"], outputs["left_out_count"], outputs["left_out"]) == (1, 70, left[:8])


def test_a_digest_says_most_of_the_rank_that_failed_first() -> None:
    lines = [f"line {n} {'x' * 60}" for n in range(50)]
    ranks = [
        {
            "rank": n,
            "exit_code": 1 if n == 3 else 0,
            "exception": "E: why" * n,
            "traceback": "T" * 3000,
        }
        | {"last_lines": lines}
        for n in range(8)
    ]
    report: Any = {
        "exit_code": 1,
        "reason": "ExitCode",
        "message": "rank 3",
        "first_failing_rank": 3,
        "ranks": ranks,
    }
    told = json.loads(termination_message(report))
    (first,) = [rank for rank in told["ranks"] if rank["rank"] == 3]
    assert first["exception"] == "E: why" * 3
    assert first["last_lines"] == lines[-len(first["last_lines"]) :]
    assert len(first["last_lines"]) >= 8
