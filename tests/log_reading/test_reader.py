"""What the client makes of bodies: whole ones, cut ones and foreign ones."""

import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from client_lib.errors import BadResponse, NotFound, ServerUnreachable
from client_lib.launcher_protocol.record import JOB_STREAMS
from client_lib.log_reading.reader import (
    HELD_MAX,
    OpenStream,
    Params,
    log_entries,
    log_lines,
    log_params,
    read_frames,
    whole_entries,
)
from client_lib.transport.failures import Transient
from tests.kit.bounds import Bounds

STATE = b'@state {"state": "RUNNING"}\n'
END = b'@end {"state": "SUCCEEDED"}\n'


def records(*lines: tuple[str, bytes], attempt: int = 1, begin: int = 0) -> bytes:
    """One frame of records: (rank, stream and mark; text)."""
    stamp = "2026-11-21T10:58:55.123456Z"
    data = b"".join(
        b"%d %b %b %b\n" % (n, stamp.encode(), where.encode(), text)
        for n, (where, text) in enumerate(lines)
    )
    return b"@log %d 0 %d %d\n%b" % (attempt, begin + len(data), len(data), data)


class Bodies:
    """An OpenStream that gives one body after the other, and keeps what it was asked."""

    def __init__(self, *bodies: bytes | Exception) -> None:
        self.bodies = list(bodies)
        self.asked: list[dict[str, object]] = []

    def __call__(self, params: Params) -> Iterator[bytes]:
        self.asked.append(dict(params))
        body = self.bodies.pop(0)
        if isinstance(body, Exception):
            raise body
        yield body


def test_an_entry_holds_all_that_is_known_of_a_line() -> None:
    body = STATE + records(("3 stderr", b"loss 0.25"), ("- train.log", b"")) + END
    first, second = log_entries(Bodies(body), {})
    assert first.time.utcoffset() == timedelta(0)
    moment = datetime(2026, 11, 21, 10, 58, 55, 123456, timezone.utc)
    assert first == (moment, 0, 3, 1, 0, "stderr", "", "loss 0.25")
    assert (second.rank, second.stream, second.text) == (None, "train.log", "")


@given(st.data())
def test_frames_are_the_same_however_the_bytes_arrive(data: st.DataObject) -> None:
    body = (
        STATE
        + records(("0 stdout", b"a\r\x85b"), ("0 stdout", b"@end {}"))
        + b"@ping\n@newer 1 2\n"
        + END
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)))))
    pieces = [body[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    assert list(read_frames(pieces)) == list(read_frames([body]))


def test_pieces_become_whole_lines_and_characters() -> None:
    text = "prefix ✓ suffix".encode()
    for cut in (8, 10):  # launchers cut between characters, as at 10
        body = (
            STATE
            + records(("0 stdout+", text[:cut]), ("1 stdout", b"between"), ("0 stdout", text[cut:]))
            + END
        )
        assert list(log_lines(Bodies(body), {})) == ["between", "prefix ✓ suffix"]
    entries = list(log_entries(Bodies(body), {}))
    assert [entry.kind for entry in entries] == ["+", "", ""]
    assert entries[0].text + entries[2].text == "prefix ✓ suffix"


def test_bytes_that_are_no_utf8_become_replacement_characters() -> None:
    body = STATE + records(("0 stdout", b"caf\xe9 \xe2\x9c"), ("0 stdout", b"+ next")) + END
    assert list(log_lines(Bodies(body), {})) == ["caf� �", "+ next"]
    assert [entry.text for entry in log_entries(Bodies(body), {})] == ["caf� �", "+ next"]


def test_a_line_without_end_is_given_in_pieces_that_fit_in_memory() -> None:
    piece = b"x" * 16_384
    frames = [records(*[("0 stdout+", piece)] * 50) for _ in range(20)]
    lines = list(log_lines(Bodies(STATE + b"".join(frames) + END), {}))
    assert sum(map(len, lines)) == 20 * 50 * len(piece)
    assert max(map(len, lines)) <= HELD_MAX


def test_lines_hold_the_last_progress_of_each_run() -> None:
    bars = [("0 stderr~", b"1 %"), ("0 stderr~", b"99 %")]
    body = STATE + records(*bars, ("0 stderr", b"done"), *bars) + END
    assert list(log_lines(Bodies(body), {})) == ["99 %", "done", "99 %"]
    assert [entry.text for entry in log_entries(Bodies(body), {})] == [
        "1 %",
        "99 %",
        "done",
        "1 %",
        "99 %",
    ]


def test_lines_are_the_jobs_own_unless_a_stream_is_asked_for() -> None:
    said = ("- launcher", b"OMP_NUM_THREADS=1")
    body = (
        STATE
        + records(said, ("0 stdout", b"7 - launcher x"), ("- train.log", b"- launcher"), said)
        + END
    )
    bodies = Bodies(body, body, body)
    assert list(log_lines(bodies, {})) == ["7 - launcher x", "- launcher"]
    assert "OMP_NUM_THREADS=1" in list(log_lines(bodies, {"stream": ["launcher", "stdout"]}))
    list(log_lines(bodies, {"tail": "2"}))
    assert bodies.asked == [
        {},
        {"stream": ["launcher", "stdout"]},
        {"tail": "2", "stream": list(JOB_STREAMS)},
    ]
    assert "launcher" in [entry.stream for entry in log_entries(Bodies(body), {})]


def test_entries_can_be_asked_for_without_what_progress_redraws() -> None:
    bars = [("0 stderr~", b"1 %"), ("0 stderr~", b"99 %")]
    body = STATE + records(*bars, ("0 stdout", b"line"), ("0 stderr", b"done"), *bars) + END
    settled = whole_entries(log_entries(Bodies(body), {}))
    assert [entry.text for entry in settled] == ["line", "99 %", "done", "99 %"]


def test_an_unfinished_line_of_an_attempt_comes_before_the_next_attempt() -> None:
    body = (
        STATE + records(("0 stdout+", b"dying")) + records(("0 stdout", b"again"), attempt=2) + END
    )
    assert list(log_lines(Bodies(body), {})) == ["dying", "again"]


def test_a_cut_body_is_resumed_where_its_last_whole_frame_ended() -> None:
    first, second = records(("0 stdout", b"one")), records(("0 stdout", b"two"), begin=100)
    bodies = Bodies(
        STATE + first + second[:-3],
        Transient(ServerUnreachable("restarting")),
        STATE + second + END,
    )
    assert list(log_lines(bodies, {"follow": "true"})) == ["one", "two"]
    end = str(len(first) - first.index(b"\n") - 1)
    assert bodies.asked[1:] == [{"follow": "true", "cursor": f"1.0:{end}"}] * 2


def test_tail_is_asked_for_once_only() -> None:
    skipped = b'@state {"state": "RUNNING", "cursor": "1.0:500,1.1:70"}\n'
    bodies = Bodies(skipped, STATE + END)
    facts: list[dict] = []
    list(log_entries(bodies, log_params(tail=5, since="10m"), on_state=facts.append))
    assert bodies.asked == [{"tail": "5", "since": "10m"}, {"cursor": "1.0:500,1.1:70"}]
    assert facts == [{"state": "RUNNING"}, {"state": "SUCCEEDED"}]


@pytest.mark.parametrize("frame", [STATE, b"@gap 1 0 5\n"], ids=["state", "gap"])
def test_an_error_of_a_callback_is_raised_and_the_stream_is_not_asked_for_again(
    frame: bytes,
) -> None:
    def fail(_: object) -> None:
        raise BrokenPipeError

    bodies = Bodies(frame + END, frame + END)
    with pytest.raises(BrokenPipeError):
        list(log_entries(bodies, {}, on_state=fail if frame == STATE else None, on_gap=fail))
    assert len(bodies.asked) == 1


def test_an_error_of_the_server_is_raised_at_once() -> None:
    with pytest.raises(NotFound):
        list(log_lines(Bodies(NotFound("no job named x")), {}))


def test_a_server_that_stays_away_is_said_after_a_while() -> None:
    def refuse(params: Params) -> Iterator[bytes]:
        raise Transient(ServerUnreachable("nobody is there"))

    with pytest.raises(ServerUnreachable, match="nobody is there"):
        list(log_lines(refuse, {}, retry_s=0.2))


def test_a_stream_that_never_ends_properly_is_said_after_a_while() -> None:
    with pytest.raises(BadResponse, match="ended in the middle"):
        list(log_lines(lambda params: [], {}, retry_s=0.2))


def test_a_log_that_breaks_off_at_the_same_place_again_and_again_is_said_after_a_while() -> None:
    with pytest.raises(BadResponse, match="ended in the middle"):
        list(log_lines(lambda params: [STATE], {}, retry_s=0.2))


def test_a_server_that_is_up_now_and_then_is_not_given_up() -> None:
    """It is away three times, each time shorter than the limit and all of them longer."""
    away = [Transient(ServerUnreachable("nobody is there"))] * 2
    answers: list[bytes | Exception] = [*away, STATE]
    bodies = Bodies(*answers * 6, STATE + END)
    assert list(log_lines(bodies, {}, retry_s=0.3)) == []


def test_a_server_that_is_up_for_a_second_is_found() -> None:
    """The pauses stay short while nothing answers, and differ from reader to reader."""
    asked = list[float]()

    def refuse(params: Params) -> Iterator[bytes]:
        asked.append(time.monotonic())
        raise Transient(ServerUnreachable("nobody is there"))

    with pytest.raises(ServerUnreachable, match=r"nobody is there \(tried for "):
        list(log_lines(refuse, {}, retry_s=5))
    assert max(after - before for before, after in pairwise(asked)) < 1
    assert len(asked) < 20


def test_a_server_that_accepts_and_sends_nothing_is_said_after_a_while(
    bounds: Bounds,
) -> None:
    bounds("client_lib.log_reading.reader", LONGEST_PAUSE_S=0.05)

    def hangs(params: Params) -> Iterator[bytes]:
        time.sleep(0.1)
        yield from ()

    with pytest.raises(BadResponse, match="ended in the middle"):
        list(log_lines(hangs, {}, retry_s=0.3))


def test_a_server_has_its_time_to_come_back_from_the_moment_at_which_it_is_lost() -> None:
    def silent(params: Params) -> Iterator[bytes]:
        yield STATE + records(("0 stdout", b"one"))
        time.sleep(0.4)

    bodies = Bodies(Transient(ServerUnreachable("restarting")), STATE + END)
    opened = iter(list[OpenStream]([silent, bodies, bodies]))
    assert list(log_lines(lambda params: next(opened)(params), {}, retry_s=0.3)) == ["one"]


@pytest.mark.parametrize(
    "body", [b"<html>\n", b"@log 1 2\n", b"@log 1 0 5 -1\n", b"@state {\n", b"@gap 1\n", b"{}\n"]
)
def test_a_body_that_is_no_log_stream_is_said(body: bytes) -> None:
    with pytest.raises(BadResponse, match=r"log stream"):
        list(log_lines(Bodies(body), {}))


def test_parameters_that_were_not_given_are_not_sent() -> None:
    assert log_params() == log_params(rank=[], stream=()) == {}
    assert log_params(follow=True, rank=0, stream=["stdout", "stderr"], tail=0) == {
        "follow": "true",
        "rank": ["0"],
        "stream": ["stdout", "stderr"],
        "tail": "0",
    }
