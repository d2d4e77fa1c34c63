"""Turns the bytes of one stream into records (launcher_protocol.record): lines, progress,
unfinished lines. No I/O.

One `Stamper` per pipe or tailed file; all of a worker share one `Sequence`. The common case, a
block of whole lines, is one formatting of bytes per block, without a loop over its lines.
"""

import time
from collections import deque
from typing import Deque, List, Optional, Tuple

from client_lib.launcher_protocol.record import GOES_ON, LINE, MAX_TEXT, PROGRESS

PARTIAL_S = 0.5  # time after which a line without an end is shown
PROGRESS_S = 1.0  # shortest time between two progress lines
_UP = b"\x1b[A"
"""One row up: tqdm draws a bar below another one as `\\n\\r bar ESC[A`, and one below that as
`\\n\\n\\r bar ESC[A ESC[A`."""
_KEPT_LINES = 400  # a traceback may be longer than the 50 lines of a report
_KEPT_BYTES = 4096


class Sequence:
    """Numbers and times of one worker's records. Times never decrease, even if the
    machine's clock is set back.
    """

    def __init__(self, first: int = 0) -> None:
        self.next = first
        self._newest = 0.0

    def stamp(self) -> bytes:
        """The current time in the format of records."""
        self._newest = now = max(self._newest, time.time())
        second = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))
        return b"%b.%06dZ" % (second.encode(), int((now - int(now)) * 1000000))


class Stamper:
    """Makes the records of one stream. `feed`, `tick` and `end` return whole records, ready to be
    appended to the log. `due` is the time (monotonic seconds) at which `tick` must be called for a
    line that waits to be shown, or None."""

    def __init__(self, sequence: Sequence, rank: str, stream: str) -> None:
        self.last_lines: Deque[bytes] = deque(maxlen=_KEPT_LINES)
        self.due: Optional[float] = None
        self.fed_at = 0.0
        """Time of its last bytes (monotonic seconds)."""
        self._sequence = sequence
        self._rank = rank.encode()
        self._stream = stream.encode()
        self._rest = b""  # bytes of a line that has no end yet
        self._goes_on = False  # the beginning of the line of `_rest` is in an unfinished record
        self._after_return = False  # `_rest` follows a lone carriage return: it redraws a line
        self._rows_below = 0  # rows of nested bars below the cursor, into which newlines step
        self._steps_down = 0  # such newlines since the last text
        self._is_drawn = False  # since the cursor came into its row, the row was redrawn
        self._held: Optional[bytes] = None  # the newest progress, to be shown later
        self._shown: Optional[bytes] = None  # the newest progress that was shown
        self._progress_due = 0.0  # time at which progress may be shown again
        self._partial_due = 0.0

    def feed(self, data: bytes, now: float) -> bytes:
        """Records for the lines that `data` completes. `now` is monotonic, in seconds."""
        self.fed_at = now
        block = self._rest + data if self._rest else data
        unusual = b"\r" in block or self._goes_on or self._after_return or self._rows_below
        out = self._slowly(block, now) if unusual else self._whole(block)
        shown, self._rest = self._begin_long(self._rest)
        out += shown
        if not self._rest:
            self._partial_due = 0.0
        elif out or not self._partial_due:  # a new line has begun, or more of one that was shown
            self._partial_due = now + PARTIAL_S
        self._set_due()
        return out

    def tick(self, now: float) -> bytes:
        """Records for lines that have waited long enough."""
        out = b""
        if self._held is not None and now >= self._progress_due:
            out += self._progress(self._held, now)
        if self._rest and self._partial_due and now >= self._partial_due:
            out += self._show_partial(now)
        self._set_due()
        return out

    def end(self) -> bytes:
        """Records for the rest at the end of the stream, which is a line even without an end."""
        out = b"" if self._held is None else self._record(PROGRESS, self._held)
        rest = self._rest
        self._rest = b""
        self._held = None
        out += self._blank_lines()
        if self._goes_on or (rest and not rest.endswith(b"\r")):
            out += self._line(rest.rstrip(b"\r"))
        elif rest.strip() and rest[:-1] != self._shown:
            out += self._record(PROGRESS, rest[:-1])
        self.due = None
        return out

    def last_texts(self) -> List[str]:
        return [line.decode("utf-8", "replace") for line in self.last_lines]

    def _slowly(self, block: bytes, now: float) -> bytes:
        """Records of a block with carriage returns, or after an unfinished line."""
        out: List[bytes] = []
        *lines, rest = block.split(b"\n")
        for line in lines:
            *redrawn, last = (line[:-1] if line.endswith(b"\r") else line).split(b"\r")
            out += [self._returned(text, now) for text in redrawn]
            if last.endswith(_UP) and self._after_return:
                out.append(self._returned(last, now))
                self._rows_below -= 1
                continue
            if self._rows_below:
                self._rows_below -= 1
                is_step = not (last or self._is_drawn or self._goes_on)
                self._is_drawn = False
                if is_step:
                    self._steps_down += 1
                    continue
            if self._held is not None:
                out.append(self._progress(self._held, now))
            out.append(self._line(last))
        # a return at the very end may be one half of a line's end: it is kept until more bytes
        # arrive
        waits = b"\r" if rest.endswith(b"\r") else b""
        *redrawn, last = rest[: len(rest) - len(waits)].split(b"\r")
        out += [self._returned(text, now) for text in redrawn]
        self._rest = last + waits
        return b"".join(out)

    def _returned(self, text: bytes, now: float) -> bytes:
        """Records for `text` that is redrawn: progress, of which few lines are shown. A lone
        carriage return ends it, or a step of the cursor back up, as a nested bar does.
        """
        self._after_return = True
        self._steps_down = 0
        drawn = _drawn(text)
        steps_up = (len(text) - len(drawn)) // len(_UP)
        self._rows_below += steps_up
        self._is_drawn = not steps_up and (self._is_drawn or text != b"")
        text = drawn
        if self._goes_on:
            return self._cut(text, PROGRESS)
        if not text.strip():
            if text:  # blanks erase a bar
                self._held = self._shown = None
            return b""
        if text == self._shown:
            return b""
        if now >= self._progress_due:
            return self._progress(text, now)
        self._held = text
        return b""

    def _progress(self, text: bytes, now: float) -> bytes:
        self._held = None
        self._shown = text
        self._progress_due = now + PROGRESS_S
        return self._cut(text, PROGRESS)

    def _line(self, text: bytes) -> bytes:
        # the last drawn row stays, as on a terminal
        if self._after_return and not text and self._shown:
            text = self._shown
        if not self._after_return:
            self._rows_below = 0
        self._after_return = False
        self._shown = None
        return self._blank_lines() + self._cut(text, LINE)

    def _blank_lines(self) -> bytes:
        """Records of the newlines after which no bar was drawn: they were lines."""
        out = b"".join([self._record(LINE, b"") for _ in range(self._steps_down)])
        self._steps_down = 0
        return out

    def _show_partial(self, now: float) -> bytes:
        """Record for a line without an end for PARTIAL_S. Progress is shown
        whole, and again when it grows.
        """
        text = self._rest
        self._partial_due = 0.0
        if text.endswith(b"\r"):
            self._rest = b""
            return self._returned(text[:-1], now)
        if self._after_return and not self._goes_on:
            text = _drawn(text)
            if text == self._shown or not text.strip():
                return b""
            if now < self._progress_due:
                self._held = text
                return b""
            return self._progress(text, now)
        ready = _whole_characters(text)
        self._rest = text[ready:]
        return self._record(GOES_ON, text[:ready]) if ready else b""

    def _cut(self, text: bytes, kind: str) -> bytes:
        """Records of a complete text of any length."""
        out, rest = self._begin_long(text)
        return out + self._record(kind, rest)

    def _begin_long(self, text: bytes) -> Tuple[bytes, bytes]:
        """Records for the beginning of a text that is longer than a record, and the
        rest, which fits into one.
        """
        out: List[bytes] = []
        while len(text) > MAX_TEXT:
            ready = _whole_characters(text[:MAX_TEXT]) or MAX_TEXT
            out.append(self._record(GOES_ON, text[:ready]))
            text = text[ready:]
        return b"".join(out), text

    def _whole(self, block: bytes) -> bytes:
        """Records of all whole lines of a block, by one formatting."""
        lines = block.split(b"\n")
        self._rest = lines.pop()
        if not lines:
            return b""
        if len(block) > MAX_TEXT and max(map(len, lines)) > MAX_TEXT:
            return b"".join(map(self._line, lines))
        self._remember(lines)
        count = len(lines)
        first = self._sequence.next
        self._sequence.next = first + count
        arguments: List[object] = [None] * (2 * count)
        arguments[::2] = range(first, first + count)
        arguments[1::2] = lines
        form = b"%%d %b %b %b %%b\n" % (self._sequence.stamp(), self._rank, self._stream)
        return form * count % tuple(arguments)

    def _record(self, kind: str, text: bytes) -> bytes:
        if kind != PROGRESS:
            if self._goes_on and self.last_lines:
                self.last_lines[-1] = (self.last_lines[-1] + text)[:_KEPT_BYTES]
            else:
                self._remember([text])
        self._goes_on = kind == GOES_ON
        number = self._sequence.next
        self._sequence.next += 1
        mark = kind.encode()
        return b"%d %b %b %b%b %b\n" % (
            number,
            self._sequence.stamp(),
            self._rank,
            self._stream,
            mark,
            text,
        )

    def _remember(self, lines: List[bytes]) -> None:
        self.last_lines.extend([line[:_KEPT_BYTES] for line in lines[-_KEPT_LINES:]])

    def _set_due(self) -> None:
        times = [self._partial_due] if self._rest and self._partial_due else []
        times += [self._progress_due] if self._held is not None else []
        self.due = min(times) if times else None


def _drawn(text: bytes) -> bytes:
    """A bar without the steps of the cursor back up."""
    while text.endswith(_UP):
        text = text[: -len(_UP)]
    return text


def _whole_characters(text: bytes) -> int:
    """Number of bytes of `text` up to the end of its last whole UTF-8 character;
    all if the end is not UTF-8.
    """
    for back in range(1, min(4, len(text)) + 1):
        byte = text[-back]
        if byte & 0xC0 == 0x80:
            continue
        need = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return len(text) if need <= back else len(text) - back
    return len(text)
