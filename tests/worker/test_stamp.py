"""From bytes to records, without a process."""

import time
from unittest import mock

from hypothesis import given, settings, strategies as st

from client_lib.launcher_protocol.record import GOES_ON, LINE, MAX_TEXT, PROGRESS, Record, parse
from client_lib.worker.stamp import Sequence, Stamper
from tests.kit.examples import examples


def stamper() -> Stamper:
    return Stamper(Sequence(), "0", "stdout")


def read(records: bytes) -> list[Record]:
    return [parse(line) for line in records.split(b"\n")[:-1]]


def shown(records: bytes) -> list[tuple[str, str]]:
    return [(record.text, record.kind) for record in read(records)]


def lines_of(records: list[Record]) -> list[str]:
    """Whole lines, put together as a reader does it."""
    lines, begun = [], ""
    for record in records:
        begun += record.text
        if record.kind != GOES_ON:
            lines.append(begun)
            begun = ""
    assert begun == ""
    return lines


CHUNKS = st.lists(st.binary(max_size=60), max_size=20)
TEXT = st.text(alphabet="ab é€😀\n", max_size=200)


@settings(max_examples=examples(300))
@given(CHUNKS, st.lists(st.booleans(), min_size=20, max_size=20))
def test_without_returns_every_line_arrives_whole_however_it_is_cut(
    chunks: list[bytes], waits: list[bool]
) -> None:
    chunks = [chunk.replace(b"\r", b"") for chunk in chunks]
    one, now, out = stamper(), 0.0, b""
    for chunk, wait in zip(chunks, waits, strict=False):
        if chunk:
            out += one.feed(chunk, now)
        if wait:
            now += 0.6
            out += one.tick(now)
    out += one.end()
    data = b"".join(chunks)
    expected = data.split(b"\n")
    if not expected[-1]:
        expected.pop()
    records = read(out)
    assert b"".join(line.split(b" ", 4)[4] for line in out.split(b"\n")[:-1]) == data.replace(
        b"\n", b""
    )
    assert len([record for record in records if record.kind == LINE]) == len(expected)
    assert [record.seq for record in records] == list(range(len(records)))


@settings(max_examples=examples(300))
@given(TEXT, st.lists(st.integers(1, 7), max_size=60))
def test_a_character_is_never_cut_in_two(text: str, sizes: list[int]) -> None:
    one, now, out, data = stamper(), 0.0, b"", text.encode()
    for size in sizes:
        if data[:size]:
            out += one.feed(data[:size], now)
            now += 0.6
            out += one.tick(now)
            data = data[size:]
    if data:
        out += one.feed(data, now)
    out += one.end()
    assert (
        lines_of(read(out)) == text.split("\n")[: -1 if text.endswith("\n") or not text else None]
    )


@settings(max_examples=examples(300))
@given(
    st.lists(st.sampled_from([b"\r", b"\n", b"a", b"bb", b"\r\n", b" "]), max_size=40),
    st.floats(0, 0.7),
)
def test_returns_make_well_formed_records_and_never_lose_what_a_line_ends_with(
    pieces: list[bytes], step: float
) -> None:
    one, now, out = stamper(), 0.0, b""
    for piece in pieces:
        out += one.feed(piece, now)
        now += step
        if one.due is not None and one.due <= now:
            out += one.tick(now)
    out += one.end()
    found = iter(lines_of(read(out)))
    lines = b"".join(pieces).replace(b"\r\n", b"\n").split(b"\n")[:-1]
    ends = [line.rsplit(b"\r", 1)[-1].decode() for line in lines]
    assert all(end in found for end in ends if end.strip()), "each of them, in this order"


def test_crlf_is_a_lines_end_even_when_it_is_cut() -> None:
    one = stamper()
    assert shown(one.feed(b"a\r\nb\r", 0.0) + one.feed(b"\nc\r\n", 0.1)) == [
        ("a", LINE),
        ("b", LINE),
        ("c", LINE),
    ]


def test_one_progress_a_second_and_the_last() -> None:
    one, out = stamper(), b""
    for tenth in range(35):
        out += one.tick(tenth / 10) + one.feed(b"\r%d%%" % tenth, tenth / 10)
    out += one.feed(b"\r35%", 3.5) + one.end()
    texts = shown(out)
    assert texts[0] == ("0%", PROGRESS)
    assert texts[-2:] == [("34%", PROGRESS), ("35%", LINE)]
    assert len(texts) <= 6


def test_the_last_progress_comes_before_the_line_that_follows() -> None:
    one = stamper()
    out = one.feed(b"1%\r2%\r3%\rdone\n", 0.0)
    assert shown(out) == [("1%", PROGRESS), ("3%", PROGRESS), ("done", LINE)]


def test_a_nested_bar_is_progress_and_its_end_leaves_nothing() -> None:
    """tqdm below another bar: the cursor goes a line down, and up again."""
    data = b"before\n\r 10%\n" + b"".join(b"\r %d/9\x1b[A\n" % step for step in range(9))
    for size in (1, 2, 3, 7, len(data)):
        one = stamper()
        pieces = [data[at : at + size] for at in range(0, len(data), size)]
        out = b"".join(one.feed(piece, 0.1 * number) for number, piece in enumerate(pieces))
        out += one.feed(b"\r      \x1b[A\r100%\nafter\n", 0.1 * len(pieces)) + one.end()
        lines = [text for text, kind in shown(out) if kind == LINE]
        assert lines == ["before", " 10%", "100%", "after"]
        assert "\x1b" not in "".join(text for text, _ in shown(out))


def bars(*outer: str) -> bytes:
    """The bytes of tqdm for three nested bars: of the outer one these states."""
    of_middle = "".join(
        f"\n\r middle {step}\x1b[A" + "".join(f"\n\n\r inner {n}\x1b[A\x1b[A" for n in range(5))
        for step in range(5)
    )
    erased = "\n\n\r      \x1b[A\x1b[A\n\r      \x1b[A"
    return "".join(f"\r{state}{of_middle}{erased}" for state in outer).encode()


def test_bars_nested_two_deep_leave_the_states_of_the_outer_one() -> None:
    data = b"before\n" + bars(" 0%", "50%") + b"\r100%\nafter\n\nlast\n"
    for size in (1, 2, 3, 7, len(data)):
        one = stamper()
        pieces = [data[at : at + size] for at in range(0, len(data), size)]
        out = b"".join(one.feed(piece, 0.01 * number) for number, piece in enumerate(pieces))
        lines = [text for text, kind in shown(out + one.end()) if kind == LINE]
        assert lines == ["before", " 0%", " middle 0", "50%", "100%", "after", "", "last"]


def test_blank_lines_after_nested_bars_are_lines() -> None:
    one = stamper()
    out = one.feed(bars(" 0%") + b"\r100%\n\n\n\nafter\n", 0.0) + one.end()
    lines = [text for text, kind in shown(out) if kind == LINE]
    assert lines == [" 0%", " middle 0", "100%", "", "", "", "after"]


def test_an_erased_bar_leaves_nothing() -> None:
    one = stamper()
    one.feed(b"\r10%|#   |", 0.0)
    assert shown(one.feed(b"\r          \rlog line\n\r11%|#   |", 0.1)) == [
        ("10%|#   |", PROGRESS),
        ("log line", LINE),
    ]


def test_a_long_line_is_cut_between_characters() -> None:
    one, text = stamper(), "€" * MAX_TEXT
    out = one.feed(text.encode() + b"\n", 0.0)
    assert lines_of(read(out)) == [text]
    assert all(len(record.text.encode()) <= MAX_TEXT for record in read(out))


def test_times_never_go_back_with_the_clock() -> None:
    sequence = Sequence()
    # the one clock that can't be passed in
    with mock.patch.object(time, "time", side_effect=[1000.5, 10.0, 1000.7]):
        stamps = [sequence.stamp() for _ in range(3)]
    assert stamps[0] == stamps[1] < stamps[2]
    assert stamps[0] == b"1970-01-01T00:16:40.500000Z"


def test_a_line_is_due_half_a_second_after_its_first_byte() -> None:
    one = stamper()
    one.feed(b"a", 10.0)
    one.feed(b"b", 10.3)
    assert one.due == 10.5
    assert shown(one.tick(10.5)) == [("ab", GOES_ON)]
    assert one.due is None
