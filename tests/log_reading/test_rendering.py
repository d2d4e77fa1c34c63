"""What a followed log looks like on a terminal and in a pipe."""

import time
from datetime import timedelta

import pytest

from client_lib.launcher_protocol.record import GOES_ON, LINE, MAX_TEXT, PROGRESS
from client_lib.log_reading import reader
from client_lib.log_reading.reader import LogEntry
from client_lib.log_reading.text_output import LogPrinter
from tests.logs.support import START


def entry(
    text: str,
    *,
    rank: int | None = 0,
    kind: str = LINE,
    at: float = 0.0,
    stream: str = "stdout",
    worker: int = 0,
) -> LogEntry:
    return LogEntry(START + timedelta(seconds=at), worker, rank, 1, 0, stream, kind, text)


def printed(printer: LogPrinter, *entries: LogEntry) -> str:
    return "".join(printer.feed(one) for one in entries) + printer.close()


def screen(text: str) -> list[str]:
    """The rows that a terminal shows."""
    rows, row, column = [""], 0, 0
    while text:
        if text.startswith("\x1b["):
            code = next(at for at, letter in enumerate(text) if letter.isalpha() and at > 1)
            if text[code] == "A":
                row -= int(text[2:code])
            elif text[code] == "J":
                rows = [*rows[:row], rows[row][:column]]
            text = text[code + 1 :]
            continue
        letter, text = text[0], text[1:]
        if letter == "\r":
            column = 0
        elif letter == "\n":
            row, column = row + 1, 0
            rows += [""] * (row + 1 - len(rows))
        else:
            rows[row] = rows[row][:column] + letter + rows[row][column + 1 :]
            column += 1
    return rows


def test_lines_carry_their_rank() -> None:
    assert printed(LogPrinter(), entry("a"), entry("b", rank=3)) == "[0] a\n[3] b\n"


def test_lines_of_no_rank_carry_their_stream_and_a_workers_number() -> None:
    shared = entry("epoch 1", rank=None, stream="train.log")
    of_second = entry("epoch 1", rank=None, stream="train.log", worker=1)
    assert (
        printed(LogPrinter(), shared, of_second) == "[train.log] epoch 1\n[train.log 1] epoch 1\n"
    )


def test_one_process_needs_no_prefix() -> None:
    assert printed(LogPrinter(prefix=False), entry("a")) == "a\n"


def test_stamps_are_utc_with_milliseconds() -> None:
    assert (
        printed(LogPrinter(timestamps=True), entry("a", at=1.25))
        == "2026-11-21T10:00:01.250Z [0] a\n"
    )


def test_a_terminal_shows_a_line_that_goes_on_at_once_and_marks_both_sides() -> None:
    pieces = [entry("load", kind=GOES_ON), entry("other", rank=1), entry("ing", kind=GOES_ON)]
    text = printed(LogPrinter(columns=80), *pieces, entry(""))
    assert text == "[0] load…\n[1] other\n[0] …ing…\n[0] …\n"


def test_a_pipe_gets_lines_whole_and_as_they_were_written() -> None:
    osc = "\x1b]52;c;aGk=\x07"
    pieces = [entry("load", kind=GOES_ON), entry(osc, rank=1), entry("ing", kind=GOES_ON)]
    assert printed(LogPrinter(), *pieces, entry("")) == f"[1] {osc}\n[0] loading\n"
    assert printed(LogPrinter(), *pieces) == f"[1] {osc}\n[0] loading\n"


def test_a_pipe_gets_a_line_that_memory_can_not_hold_in_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # a line of 64 MiB takes long to make
    monkeypatch.setattr(reader, "HELD_MAX", 8)
    pieces = [entry("12345", kind=GOES_ON), entry("67890", kind=GOES_ON), entry("end")]
    assert printed(LogPrinter(), *pieces) == "[0] 1234567890…\n[0] …end\n"


def test_a_pipe_gets_the_last_progress_of_a_run_only() -> None:
    bars = [entry(f"{percent} %", kind=PROGRESS, stream="stderr") for percent in (1, 2, 3)]
    done = entry("done", stream="stderr")
    assert printed(LogPrinter(), *bars, done) == "[0] 3 %\n[0] done\n"
    assert printed(LogPrinter(), *bars) == "[0] 3 %\n"
    assert printed(LogPrinter(), *bars, entry("of stdout")) == "[0] of stdout\n[0] 3 %\n"


def test_a_terminal_redraws_progress_below_the_lines() -> None:
    printer = LogPrinter(columns=20)
    text = printer.feed(entry("1 %", kind=PROGRESS)) + printer.feed(
        entry("5 %", rank=1, kind=PROGRESS)
    )
    assert screen(text) == ["[0] 1 %", "[1] 5 %"]
    text += printer.feed(entry("2 %", kind=PROGRESS)) + printer.feed(entry("line", stream="stderr"))
    assert screen(text) == ["[0] line", "[0] 2 %", "[1] 5 %"]
    text += printer.feed(entry("100 %")) + printer.feed(entry("x" * 50, rank=1, kind=PROGRESS))
    assert screen(text) == ["[0] line", "[0] 100 %", "[1] " + "x" * 15]
    text += printer.close()
    assert screen(text) == ["[0] line", "[0] 100 %", "[1] " + "x" * 50, ""]


def test_others_can_write_above_the_bars_of_a_terminal() -> None:
    printer = LogPrinter(columns=20, prefix=False)
    text = printer.feed(entry("1 %", kind=PROGRESS)) + printer.clear() + "of another\n"
    assert screen(text) == ["of another", ""]
    text += printer.feed(entry("2 %", kind=PROGRESS))
    assert screen(text) == ["of another", "2 %"]
    assert LogPrinter().clear() == ""


def test_identical_lines_of_several_ranks_become_one() -> None:
    lines = [entry("loading", rank=rank, at=0.01 * rank) for rank in (0, 1, 2, 5)]
    assert printed(LogPrinter(collapse=True), *lines) == "[0-2,5] loading\n"


def test_collapsing_keeps_the_order_of_each_rank() -> None:
    lines = [entry("a"), entry("x", rank=1), entry("a", rank=1), entry("b"), entry("b", rank=1)]
    assert printed(LogPrinter(collapse=True), *lines) == "[0] a\n[1] x\n[1] a\n[0-1] b\n"


def test_a_line_of_no_rank_joins_none_of_a_rank() -> None:
    lines = [entry("a"), entry("a", rank=None)]
    assert printed(LogPrinter(collapse=True), *lines) == "[0] a\n[stdout] a\n"


def test_the_same_line_twice_is_two_lines() -> None:
    assert printed(LogPrinter(collapse=True), entry("a"), entry("a")) == "[0] a\n[0] a\n"


def test_a_line_waits_a_moment_only_for_its_twins() -> None:
    printer = LogPrinter(collapse=True)
    assert printer.feed(entry("a")) == ""
    assert printer.feed(entry("b", at=0.5)) == "[0] a\n"
    assert printer.idle() == "[0] b\n"
    assert printed(printer, entry("a", rank=1, at=0.6)) == "[1] a\n"


def test_long_progress_without_a_step_is_drawn_at_once() -> None:
    printer, began = LogPrinter(columns=80), time.monotonic()
    printer.feed(entry("x" * MAX_TEXT, kind=PROGRESS))
    assert time.monotonic() - began < 1


def test_a_rank_has_the_same_colour_in_lines_and_bars() -> None:
    printer = LogPrinter(colours=True, columns=12, timestamps=True)
    assert printer.feed(entry("a")) == "2026-11-21T10:00:00.000Z \x1b[36m[0]\x1b[39m a\n"
    printer = LogPrinter(colours=True, columns=12)
    assert printer.feed(entry("loading 1 of 3", kind=PROGRESS)) == "\x1b[36m[0]\x1b[39m loading"
    assert printer.feed(entry("x", rank=9)).startswith("\r\x1b[J\x1b[33m[9]\x1b[39m x\n")
    assert printer.feed(entry("[1] x", rank=None, stream="train.log")).startswith(
        "\r\x1b[J[train.log] [1] x\n"
    )


def test_bars_stand_in_the_order_of_their_ranks() -> None:
    printer = LogPrinter(columns=80)
    shown = "".join(printer.feed(entry(f"{rank}/9", kind=PROGRESS, rank=rank)) for rank in (1, 0))
    assert screen(shown) == ["[0] 0/9", "[1] 1/9"]


def test_from_four_ranks_on_one_bar_is_drawn_with_the_steps_of_all() -> None:
    printer = LogPrinter(columns=50)
    steps = (620, 580, 625, 600)
    bars = [
        entry(f"62%|{'#' * 40}| {step}/1000", kind=PROGRESS, rank=rank)
        for rank, step in enumerate(steps)
    ]
    assert screen("".join(map(printer.feed, bars))) == [
        "[0] 62%|##################  [0-3] step 580 to 625"
    ]
    assert printer.bars() == [f"[0] 62%|{'#' * 40}| 620/1000  [0-3] step 580 to 625"]


def test_bars_without_steps_are_all_drawn() -> None:
    printer = LogPrinter(columns=50)
    bars = [entry("62 %", kind=PROGRESS, rank=rank) for rank in range(4)]
    assert len(screen("".join(map(printer.feed, bars)))) == 4
