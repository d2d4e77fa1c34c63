"""The stream of one job, over a real socket, with inotify and with its polling twin."""

import json
import threading
import time
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from client_lib.errors import NotFound
from client_lib.log_reading.reader import (
    JobStatus,
    Records,
    log_entries,
    log_lines,
    log_params,
    read_frames,
)
from client_lib.spec.paths import LOG_FRAMES, NDJSON
from server_stub.files.job_dirs import log_dir
from tests.kit.waiting import until
from tests.logs.log_server import write_job
from tests.logs.support import LogWriter, Server, each_kind_of_events, stamp


def lines(logs_server: Server, **asked: Any) -> list[str]:
    return list(log_lines(logs_server.open_stream, log_params(**asked)))


def finish(folder: Path) -> None:
    write_job(folder, state="SUCCEEDED", reason="Completed")


def test_the_whole_log_comes_in_its_order(logs_server: Server, writer: LogWriter) -> None:
    for number in range(5000):
        writer.write(f"line {number}", rank=number % 3)
    assert lines(logs_server) == [f"line {number}" for number in range(5000)]


def test_an_unfiltered_log_of_one_worker_goes_out_as_its_bytes(
    logs_server: Server, writer: LogWriter
) -> None:
    data = b"".join(writer.write(f"line {number}") for number in range(10))
    with logs_server.get(LOG_FRAMES) as response:
        body = response.content
    assert b"@log 1 0 %d %d\n%b" % (len(data), len(data), data) in body
    assert body.startswith(b"@state {")
    assert body.splitlines()[-1].startswith(b"@end {")


def test_proxies_are_told_not_to_hold_the_stream_back(
    logs_server: Server, writer: LogWriter
) -> None:
    with logs_server.get() as response:
        assert response.headers["X-Accel-Buffering"] == "no"
        assert response.headers["Cache-Control"] == "no-store, no-transform"


@pytest.mark.smoke
@each_kind_of_events
def test_follow_gives_lines_as_they_come_and_ends_when_the_job_is_final(
    logs_server: Server, writer: LogWriter, tmp_path: Path
) -> None:
    writer.write("before")
    followed = log_lines(logs_server.open_stream, log_params(follow=True))
    assert next(followed) == "before"
    for number in range(20):
        writer.write(f"live {number}")
        assert next(followed) == f"live {number}"
    writer.write("last")
    finish(tmp_path)
    assert list(followed) == ["last"]


@each_kind_of_events
def test_a_job_that_waits_says_why_and_its_first_log_is_found(
    logs_server: Server, tmp_path: Path
) -> None:
    write_job(
        tmp_path, state="PENDING", reason="Queued", message="waits for 2 of 8 GPUs", n_workers=2
    )
    states: list[str] = []
    seen: list[str] = []

    def follow() -> None:
        on_state = lambda facts: states.append(facts["message"] or facts["state"])  # noqa: E731
        entries = log_entries(logs_server.open_stream, log_params(follow=True), on_state=on_state)
        seen.extend(entry.text for entry in entries)

    thread = threading.Thread(target=follow)
    thread.start()
    until(lambda: states == ["waits for 2 of 8 GPUs"])
    LogWriter(log_dir(tmp_path, 1, 1)).write("from worker 1")
    until(lambda: seen == ["from worker 1"])
    write_job(tmp_path, state="RUNNING", reason="Running", message="")
    LogWriter(log_dir(tmp_path, 1, 0)).write("from worker 0")
    until(lambda: len(seen) == 2 and states[-1] == "RUNNING")
    finish(tmp_path)
    thread.join(timeout=10)
    assert seen == ["from worker 1", "from worker 0"]
    assert states == ["waits for 2 of 8 GPUs", "RUNNING", "SUCCEEDED"]


@each_kind_of_events
def test_the_log_of_a_new_attempt_is_picked_up(
    logs_server: Server, writer: LogWriter, tmp_path: Path
) -> None:
    followed = log_entries(logs_server.open_stream, log_params(follow=True))
    writer.write("first")
    assert next(followed).attempt == 1
    write_job(tmp_path, state="RESTARTING", reason="ExitCode", attempt=2)
    LogWriter(log_dir(tmp_path, 2, 0)).write("second")
    entry = next(followed)
    assert (entry.attempt, entry.seq, entry.text) == (2, 0, "second")
    finish(tmp_path)
    assert list(followed) == []


def test_history_of_several_workers_is_in_the_order_of_time(
    logs_server: Server, tmp_path: Path
) -> None:
    write_job(tmp_path, n_workers=3)
    for worker in range(3):
        log = LogWriter(log_dir(tmp_path, 1, worker))
        for number in range(2000):
            log.write(f"{3 * number + worker}", at=(3 * number + worker) / 10, rank=worker)
    assert lines(logs_server) == [str(number) for number in range(6000)]


def test_attempts_come_one_behind_the_other_and_one_can_be_chosen(
    logs_server: Server, tmp_path: Path
) -> None:
    write_job(tmp_path, attempt=2)
    LogWriter(log_dir(tmp_path, 1, 0)).write("one", at=9)
    LogWriter(log_dir(tmp_path, 2, 0)).write("two", at=1)
    assert lines(logs_server) == ["one", "two"]
    assert lines(logs_server, attempt=1) == ["one"]
    with pytest.raises(NotFound, match="attempt 3"):
        lines(logs_server, attempt=3)


def plan(folder: Path, attempt: int, **counts: int) -> None:
    worker = log_dir(folder, attempt, 0).parent
    worker.mkdir(parents=True, exist_ok=True)
    (worker / "plan.json").write_text(json.dumps(counts))


@pytest.mark.parametrize("follow", [False, True])
def test_a_rank_that_no_attempt_has_is_refused_with_those_that_there_are(
    logs_server: Server, tmp_path: Path, follow: bool
) -> None:
    write_job(tmp_path, n_workers=2, attempt=2, state="SUCCEEDED", reason="Completed")
    plan(tmp_path, 1, n_workers=2, processes_per_worker=4)
    assert lines(logs_server, rank=9, follow=follow) == []  # of the second nobody knows it yet
    plan(tmp_path, 2, n_workers=2, processes_per_worker=1)
    assert lines(logs_server, rank=[0, 7], follow=follow) == []
    with pytest.raises(NotFound, match="no rank 8") as refused:
        lines(logs_server, rank=[0, 9, 8], follow=follow)
    assert refused.value.hint == "its ranks are 0 to 7"
    with pytest.raises(NotFound, match="no rank 2"):
        lines(logs_server, rank=2, attempt=2, follow=follow)


def test_ranks_and_streams_are_chosen(logs_server: Server, writer: LogWriter) -> None:
    for number in range(3000):
        writer.write(f"out {number}", rank=number % 12)
        writer.write(f"err {number}", rank=number % 12, stream="stderr")
    writer.write("loss", rank="-", stream="train.log")
    assert lines(logs_server, rank=1) == [
        f"{s} {n}" for n in range(3000) if n % 12 == 1 for s in ("out", "err")
    ]
    assert lines(logs_server, rank=[1, 11], stream="stderr") == [
        f"err {n}" for n in range(3000) if n % 12 in (1, 11)
    ]
    assert lines(logs_server, stream="train.log") == ["loss"]


@pytest.mark.parametrize("tail", [0, 1, 7, 4999, 5000, 6000])
def test_tail_is_the_last_lines_of_all_workers_together(
    logs_server: Server, tmp_path: Path, tail: int
) -> None:
    write_job(tmp_path, n_workers=2)
    logs = [LogWriter(log_dir(tmp_path, 1, worker)) for worker in range(2)]
    for number in range(5000):
        log = logs[number % 2]
        log.write(f"line {number}", at=number)
        if number % 1000 == 0:
            log.new_segment()
    assert lines(logs_server, tail=tail) == [
        f"line {number}" for number in range(max(0, 5000 - tail), 5000)
    ]


def test_metrics_are_no_lines(logs_server: Server, writer: LogWriter, tmp_path: Path) -> None:
    for number in range(3):
        writer.write(f"line {number} metrics ")
        writer.write("[0, 1, 0, {}]", rank="-", stream="metrics")
    assert lines(logs_server) == [f"line {number} metrics " for number in range(3)]
    assert lines(logs_server, tail=2) == [f"line {number} metrics " for number in (1, 2)]
    assert lines(logs_server, rank=0) == lines(logs_server)
    followed = log_lines(logs_server.open_stream, log_params(follow=True))
    assert next(followed) == "line 0 metrics "
    for number in range(3, 6):
        writer.write("[0, 1, 0, {}]", rank="-", stream="metrics")
        writer.write(f"line {number} metrics ")
    finish(tmp_path)
    assert list(followed) == [f"line {number} metrics " for number in range(1, 6)]


def test_tail_counts_only_the_chosen_lines_and_no_progress(
    logs_server: Server, writer: LogWriter
) -> None:
    for number in range(2000):
        writer.write(f"line {number}", rank=number % 2)
        writer.write(f"{number} %", rank=number % 2, stream="stderr", kind="~")
    assert lines(logs_server, tail=2, rank=0, stream="stdout") == ["line 1996", "line 1998"]
    assert [line for line in lines(logs_server, tail=2) if line.startswith("line")] == [
        "line 1998",
        "line 1999",
    ]


def test_a_tail_longer_than_the_log_has_the_progress_before_its_first_line(
    logs_server: Server, writer: LogWriter
) -> None:
    writer.write("10 %", kind="~")
    writer.write("Loading ", kind="+")
    assert lines(logs_server, tail=2) == ["10 %", "Loading "]
    writer.write("done")
    assert lines(logs_server, tail=2) == ["10 %", "Loading done"]
    assert lines(logs_server, tail=1) == ["Loading done"]


def test_tail_reaches_back_into_earlier_attempts(logs_server: Server, tmp_path: Path) -> None:
    write_job(tmp_path, attempt=2)
    for attempt in (1, 2):
        log = LogWriter(log_dir(tmp_path, attempt, 0))
        for number in range(3):
            log.write(f"{attempt}.{number}", at=attempt)
    assert lines(logs_server, tail=4) == ["1.2", "2.0", "2.1", "2.2"]


def test_pages_before_a_cursor_lead_back_to_the_first_line(
    logs_server: Server, tmp_path: Path
) -> None:
    write_job(tmp_path, attempt=2, n_workers=2)
    for attempt in (1, 2):
        logs = [LogWriter(log_dir(tmp_path, attempt, worker)) for worker in range(2)]
        for number in range(600 * (attempt - 1), 600 * attempt):
            logs[number % 2].write(f"line {number}", at=number)
            if number % 250 == 0:
                logs[0].new_segment()
    pages: list[list[bytes]] = []
    before: dict[str, str] = {}
    while not pages or before:
        frames = list(read_frames(logs_server.open_stream({"tail": "500"} | before)))
        records = b"".join(frame.data for frame in frames if isinstance(frame, Records))
        pages.insert(0, [record.split(b" ", 4)[4] for record in records.splitlines()])
        cursor = frames[0].facts.get("cursor") if isinstance(frames[0], JobStatus) else None
        before = {"before": cursor} if cursor else {}
    assert [len(page) for page in pages] == [200, 500, 500]
    assert [line for page in pages for line in page] == [
        b"line %d" % number for number in range(1200)
    ]


def test_a_page_before_a_cursor_has_only_the_chosen_lines(
    logs_server: Server, writer: LogWriter
) -> None:
    for number in range(100):
        if number == 50:
            cursor = f"1.0:{writer.offset}"
        writer.write(f"line {number}", rank=number % 2)
    assert lines(logs_server, rank=1, tail=2) == ["line 97", "line 99"]
    older = log_params(rank=1, tail=2) | {"before": cursor}
    assert list(log_lines(logs_server.open_stream, older)) == ["line 47", "line 49"]
    assert logs_server.text(before="", tail=2) == ""


def test_since_begins_at_a_time(logs_server: Server, writer: LogWriter) -> None:
    for number in range(4000):
        writer.write(f"line {number}", at=number)
        if number % 1500 == 0:
            writer.new_segment()
    for since in (0, 1, 1499, 1500, 1501, 2345, 3999, 4000):
        assert lines(logs_server, since=stamp(since)) == [
            f"line {number}" for number in range(since, 4000)
        ]


def test_follow_with_tail_goes_on_behind_it(
    logs_server: Server, writer: LogWriter, tmp_path: Path
) -> None:
    for number in range(10):
        writer.write(f"line {number}")
    followed = log_lines(logs_server.open_stream, log_params(follow=True, tail=2))
    assert list(islice(followed, 2)) == ["line 8", "line 9"]
    writer.write("line 10")
    finish(tmp_path)
    assert list(followed) == ["line 10"]


def test_missing_records_are_said(logs_server: Server, writer: LogWriter, tmp_path: Path) -> None:
    for _ in range(3):
        writer.write("head")
    writer.new_segment()
    lost = writer.path
    for _ in range(5):
        writer.write("lost")
    writer.new_segment()
    writer.write("tail")
    writer.new_segment()
    writer.seq += 7
    writer.write("behind a hole")
    lost.unlink()
    gaps: list[int] = []
    got = log_entries(
        logs_server.open_stream, log_params(), on_gap=lambda gap: gaps.append(gap.records)
    )
    assert [entry.text for entry in got] == ["head"] * 3 + ["tail", "behind a hole"]
    assert gaps == [5, 7]


def test_a_follower_that_vanishes_frees_its_place(logs_server: Server, writer: LogWriter) -> None:
    responses = [logs_server.get(LOG_FRAMES, follow="true") for _ in range(3)]
    until(lambda: logs_server.followers() == 3)
    for response in responses:
        response.close()
    until(lambda: logs_server.followers() == 0)


def test_many_followers_get_every_line(
    logs_server: Server, writer: LogWriter, tmp_path: Path
) -> None:
    got: list[list[str]] = [[] for _ in range(60)]
    threads = [
        threading.Thread(
            target=lambda seen=seen: seen.extend(lines(logs_server, follow=True)), daemon=True
        )
        for seen in got
    ]
    for thread in threads:
        thread.start()
    until(lambda: logs_server.followers() == 60)
    for number in range(50):
        writer.write(f"line {number}")
    finish(tmp_path)
    for thread in threads:
        thread.join(timeout=20)
    assert all(seen == [f"line {number}" for number in range(50)] for seen in got)


def test_text_has_prefixes_and_stamps_and_the_last_progress(
    logs_server: Server, writer: LogWriter
) -> None:
    writer.write("a long", rank=1, kind="+")
    writer.write(" line", rank=1)
    for percent in (1, 50, 99):
        writer.write(f"{percent} %", kind="~")
    writer.write(b"caf\xe9 \xff")
    assert logs_server.text() == "[1] a long line\n[0] 99 %\n[0] caf� �\n"
    assert logs_server.text(rank=1, timestamps=True) == f"{stamp(0)} a long line\n"


def test_the_last_line_is_whole_though_it_came_in_pieces(
    logs_server: Server, writer: LogWriter
) -> None:
    writer.write("before")
    for piece in ("one ", "two ", "three "):
        writer.write(piece, kind="+")
    writer.write("end")
    assert lines(logs_server, tail=1) == ["one two three end"]
    assert logs_server.text(tail=1) == "[0] one two three end\n"
    assert lines(logs_server, tail=2) == ["before", "one two three end"]


def test_text_tells_the_launchers_words_from_the_jobs_lines(
    logs_server: Server, writer: LogWriter
) -> None:
    writer.write("OMP_NUM_THREADS=1", rank="-", stream="launcher")
    writer.write("epoch 1", rank="-", stream="train.log")
    assert logs_server.text() == "[launcher] OMP_NUM_THREADS=1\n[train.log] epoch 1\n"
    assert logs_server.text(stream="stdout") == ""


def test_ndjson_holds_one_object_per_record(logs_server: Server, writer: LogWriter) -> None:
    data = writer.write("hello", rank=3)
    with logs_server.get(NDJSON) as response:
        objects = [json.loads(line) for line in response.content.splitlines()]
    place = {"time": stamp(0), "attempt": 1, "worker": 0, "rank": 3, "seq": 0}
    record = place | {
        "stream": "stdout",
        "kind": "",
        "text": "hello",
        "position": f"1.0:{len(data)}",
    }
    assert objects[1:-1] == [record]
    assert (objects[0]["event"], objects[-1]["event"]) == ("state", "end")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"stream": "stdlog"}, "stream='stdlog': is unknown; there are: stdout"),
        ({"tail": -1}, "tail='-1'"),
        ({"rank": -1}, "rank='-1'"),
        ({"attempt": 0}, "attempt='0'"),
        ({"since": "yesterday"}, "since='yesterday'"),
        ({"cursor": "1:2"}, "cursor part '1:2'"),
        ({"before": "1:2"}, "cursor part '1:2'"),
        ({"before": "1.0:2", "follow": "true"}, "before"),
        ({"before": "1.0:2", "grep": "x"}, "before"),
    ],
)
def test_a_parameter_that_means_nothing_is_refused_by_name(
    logs_server: Server, writer: LogWriter, asked: dict, said: str
) -> None:
    response = logs_server.get(**asked)
    assert response.status_code == 422
    assert said in response.json()["message"]


@each_kind_of_events
def test_a_deleted_job_ends_its_followers_with_not_found(
    logs_server: Server, writer: LogWriter, tmp_path: Path
) -> None:
    writer.write("line")
    followed = log_lines(logs_server.open_stream, log_params(follow=True))
    assert next(followed) == "line"
    (tmp_path / "job.json").unlink()
    with pytest.raises(NotFound):
        next(followed)


@each_kind_of_events
def test_a_record_that_is_half_written_waits_for_its_end(
    logs_server: Server, writer: LogWriter, tmp_path: Path
) -> None:
    followed = log_lines(logs_server.open_stream, log_params(follow=True))
    writer.write("whole")
    assert next(followed) == "whole"
    record = writer.record("in two halves")
    writer.append([record[:20]])
    time.sleep(0.05)  # the half is seen, or not: either is fine
    writer.append([record[20:]])
    assert next(followed) == "in two halves"
    finish(tmp_path)
    assert list(followed) == []
