"""The screen of a terminal emulator with the output of a follower."""

from collections.abc import Iterable, Sequence
from datetime import datetime

import pyte
from hypothesis import given, settings, strategies as st

from client_lib import visible_text
from client_lib.launcher_protocol.record import GOES_ON, PROGRESS, parse
from client_lib.log_reading.reader import LogEntry
from client_lib.log_reading.text_output import LogPrinter
from client_lib.worker import stamp
from client_lib.worker.stamp import Stamper
from tests.kit.examples import examples
from tests.log_reading.sequences import COLOURS, SEQUENCES

COLUMNS = 40
ROWS = 12

words = st.text("abcXYZ0189 .:=%|#/█é", min_size=1, max_size=30)
texts = st.lists(
    st.one_of(words, words, st.sampled_from(COLOURS), st.sampled_from(SEQUENCES)), max_size=6
).map("".join)
nested_bar = st.builds(
    lambda text, depth: "\n" * depth + f"\r{text}" + "\x1b[A" * depth, texts, st.integers(1, 3)
)
nested_bars = st.lists(nested_bar, max_size=3).map("".join)
printed = st.one_of(
    texts.map(lambda text: f"{text}\n"),
    texts.map(lambda text: f"\r{text}"),
    texts.map(lambda text: f"{text}\r"),
    nested_bars,
    texts,
)
SOURCES = [("0", "stdout"), ("0", "stderr"), ("1", "stdout")]
chunks = st.tuples(
    st.sampled_from(range(len(SOURCES))),
    st.integers(1, 60),  # bytes
    st.sampled_from([0.0, 0.1, 0.6, 1.1]),  # seconds until then
)


class Screen:
    """A terminal that has just been opened, with all that has scrolled out of it."""

    def __init__(self) -> None:
        self.screen = pyte.HistoryScreen(COLUMNS, ROWS, history=100_000)
        self._stream = pyte.Stream(self.screen)

    def write(self, text: str, cuts: Iterable[int] = ()) -> None:
        """Write as a terminal's driver does; the emulator gets the text in these pieces."""
        text = text.replace("\n", "\r\n")
        begin = 0
        for end in sorted({*(cut % (len(text) + 1) for cut in cuts), len(text)}):
            self._stream.feed(text[begin:end])
            begin = end

    def rows(self) -> list[str]:
        """All rows up to the cursor, without blanks at their ends."""
        gone = ["".join(row[at].data for at in range(COLUMNS)) for row in self.screen.history.top]
        shown = self.screen.display[: self.screen.cursor.y + 1]
        return [row.rstrip() for row in [*gone, *shown]]

    def is_as_opened(self) -> bool:
        fresh = pyte.Screen(COLUMNS, ROWS)
        now = self.screen
        return (
            (now.title, now.icon_name, now.mode, now.margins, now.charset)
            == (fresh.title, fresh.icon_name, fresh.mode, fresh.margins, fresh.charset)
        ) and now.cursor.attrs == fresh.cursor.attrs


def entries(written: Sequence[str], reads: Sequence[tuple[int, int, float]]) -> list[LogEntry]:
    """Entries of a launcher that reads the output of three sources in these pieces."""
    left = [text.encode() for text in written]
    numbers = stamp.Sequence()
    stampers = [Stamper(numbers, *source) for source in SOURCES]
    now = 0.0
    records = b""
    for source, size, pause_s in reads:
        now += pause_s
        for stamper in stampers:
            records += stamper.tick(now)
        records += stampers[source].feed(left[source][:size], now)
        left[source] = left[source][size:]
    for stamper, rest in zip(stampers, left, strict=True):
        records += stamper.feed(rest, now)
        records += stamper.end()
    return [entry_of(line) for line in records.split(b"\n")[:-1]]


def entry_of(line: bytes) -> LogEntry:
    seq, time, rank, stream, kind, text = parse(line)
    return LogEntry(
        datetime.fromisoformat(f"{time[:-1]}+00:00"), 0, rank, 1, seq, stream, kind, text
    )


class Expected:
    """The rows that a reader must see: of every entry all of its text, in its place for ever."""

    def __init__(self) -> None:
        self.rows: list[str] = []
        self.bars: dict[tuple[int | None, str], str] = {}
        self._going_on: set[tuple[int | None, str]] = set()

    def add(self, entry: LogEntry) -> None:
        source = (entry.rank, entry.stream)
        text = visible_text.plain(entry.text)
        before = "…" if source in self._going_on else ""
        after = "…" if entry.kind == GOES_ON else ""
        (self._going_on.add if after else self._going_on.discard)(source)
        if entry.kind == PROGRESS:
            self.bars[source] = f"[{entry.rank}] {text}"
            return
        self.bars.pop(source, None)
        self.rows += wrapped(f"[{entry.rank}] {before}{text}{after}")

    def drawn(self) -> list[str]:
        """The bars below the lines; the row of the cursor if there is none."""
        ordered = sorted(self.bars, key=lambda source: (source[0] or 0, source[1]))
        return [self.bars[source][: COLUMNS - 1].rstrip() for source in ordered] or [""]


def wrapped(text: str) -> list[str]:
    return [text[at : at + COLUMNS].rstrip() for at in range(0, max(1, len(text)), COLUMNS)]


@given(
    st.tuples(*[st.lists(printed, max_size=8).map("".join)] * len(SOURCES)),
    st.lists(chunks, max_size=30),
    st.lists(st.integers(0, 1000), max_size=4),
)
@settings(max_examples=examples(300), deadline=None)
def test_the_screen_has_every_line_of_the_log_and_nothing_but_the_bars_moves(
    written: tuple[str, ...], reads: list[tuple[int, int, float]], cuts: list[int]
) -> None:
    printer = LogPrinter(columns=COLUMNS, colours=True)
    screen = Screen()
    expected = Expected()
    for entry in entries(written, reads):
        screen.write(printer.feed(entry), cuts)
        expected.add(entry)
        assert screen.rows() == [*expected.rows, *expected.drawn()]
        assert screen.is_as_opened()
    screen.write(printer.close(), cuts)
    last = [row for bar in expected.bars.values() for row in wrapped(bar)]
    assert screen.rows() == [*expected.rows, *last, ""]
