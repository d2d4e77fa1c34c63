"""From the bytes of one stream to records: lines, progress, lines that go on. No I/O, no clock of its own.

One `Stamper` per pipe or tailed file; all of a worker share one `Sequence`. What makes up a record is told in
format.py. The common case, a block of whole lines, is one bytes formatting for the block and never looks at a line.

Standard library only, Python >= 3.8.
"""

import time
from collections import deque
from typing import Deque, List, Optional

from client_lib.worker.format import GOES_ON, LINE, MAX_TEXT, PROGRESS

PARTIAL_S = 0.5  # a line without an end is shown after so long
PROGRESS_S = 1.0  # at most one progress line in so long
_KEPT_LINES = 400  # a traceback may be longer than the 50 lines of a report
_KEPT_BYTES = 4096


class Sequence:
    """Numbers and times of one worker's records. Times never go back, whatever the machine's clock does."""

    def __init__(self, first: int = 0) -> None:
        self.next = first
        self._newest = 0.0
        self._second = -1
        self._text = b""

    def stamp(self) -> bytes:
        """The time of now, as records have it."""
        self._newest = now = max(self._newest, time.time())
        second = int(now)
        if second != self._second:
            self._second = second
            self._text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second)).encode()
        return b"%b.%06dZ" % (self._text, int((now - second) * 1000000))


class Stamper:
    """Turns what one rank writes to one stream into records.

    `feed` and `end` give back whole records, ready to be appended to the log. `due` is the time (monotonic seconds) at
    which `tick` wants to be called for a line that waits to be shown, or None.
    """

    def __init__(self, sequence: Sequence, rank: str, stream: str) -> None:
        self.last_lines: Deque[bytes] = deque(maxlen=_KEPT_LINES)
        self.due: Optional[float] = None
        self._sequence = sequence
        self._rank, self._stream = rank.encode(), stream.encode()
        self._rest = b""  # bytes of a line that has no end yet
        self._goes_on = False  # the line that `_rest` belongs to was begun by a record that goes on
        self._after_return = False  # `_rest` follows a lone carriage return: it redraws a line
        self._held: Optional[bytes] = None  # the newest progress that may not be shown yet
        self._shown: Optional[bytes] = None  # the newest progress that was shown
        self._progress_due = 0.0  # when progress may be shown again
        self._partial_due = 0.0

    def feed(self, data: bytes, now: float) -> bytes:
        """Records for what `data` completes. `now` is monotonic, in seconds."""
        block = self._rest + data if self._rest else data
        unusual = b"\r" in block or self._goes_on or self._after_return
        out = self._slowly(block, now) if unusual else self._whole(block)
        if len(self._rest) > MAX_TEXT:
            out += self._show_long()
        if not self._rest:
            self._partial_due = 0.0
        elif out or not self._partial_due:  # a new line has begun, or more of one that was shown
            self._partial_due = now + PARTIAL_S
        self._set_due()
        return out

    def tick(self, now: float) -> bytes:
        """Records for what has waited long enough."""
        out = b""
        if self._held is not None and now >= self._progress_due:
            out += self._progress(self._held, now)
        if self._rest and self._partial_due and now >= self._partial_due:
            out += self._show_partial(now)
        self._set_due()
        return out

    def end(self) -> bytes:
        """The stream has ended: what is left is a line, whether or not it has an end."""
        out = b"" if self._held is None else self._record(PROGRESS, self._held)
        rest, self._rest, self._held = self._rest, b"", None
        if self._goes_on or (rest and not rest.endswith(b"\r")):
            out += self._line(rest.rstrip(b"\r"))
        elif rest.strip() and rest[:-1] != self._shown:
            out += self._record(PROGRESS, rest[:-1])
        self.due = None
        return out

    def _slowly(self, block: bytes, now: float) -> bytes:
        """Any block; for those where a carriage return or an unfinished line makes a difference."""
        out: List[bytes] = []
        *lines, rest = block.split(b"\n")
        for line in lines:
            *redrawn, last = (line[:-1] if line.endswith(b"\r") else line).split(b"\r")
            out += [self._returned(text, now) for text in redrawn]
            if self._held is not None:
                out.append(self._progress(self._held, now))
            out.append(self._line(last))
        # a return at the very end may be one half of a line's end: it is looked at with what follows
        waits = b"\r" if rest.endswith(b"\r") else b""
        *redrawn, last = rest[: len(rest) - len(waits)].split(b"\r")
        out += [self._returned(text, now) for text in redrawn]
        self._rest = last + waits
        return b"".join(out)

    def _returned(self, text: bytes, now: float) -> bytes:
        """A lone carriage return ends `text`: progress, of which few are shown."""
        self._after_return = True
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
        self._held, self._shown = None, text
        self._progress_due = now + PROGRESS_S
        return self._cut(text, PROGRESS)

    def _line(self, text: bytes) -> bytes:
        if self._after_return and not text and self._shown:  # the row that was drawn last stays, as on a terminal
            text = self._shown
        self._after_return, self._shown = False, None
        return self._cut(text, LINE)

    def _show_partial(self, now: float) -> bytes:
        """A line that had no end for PARTIAL_S. Progress is shown whole, and again when there is more of it."""
        text = self._rest
        if text.endswith(b"\r"):
            self._rest, self._partial_due = b"", 0.0
            return self._returned(text[:-1], now)
        if self._after_return and not self._goes_on:
            self._partial_due = 0.0
            if text == self._shown or not text.strip():
                return b""
            if now < self._progress_due:
                self._held = text
                return b""
            return self._progress(text, now)
        ready = _whole_characters(text)
        self._rest, self._partial_due = text[ready:], 0.0
        return self._record(GOES_ON, text[:ready]) if ready else b""

    def _show_long(self) -> bytes:
        """Pieces of a line that is longer than a record, so that only the newest bytes are kept."""
        out: List[bytes] = []
        while len(self._rest) > MAX_TEXT:
            ready = _whole_characters(self._rest[:MAX_TEXT]) or MAX_TEXT
            out.append(self._record(GOES_ON, self._rest[:ready]))
            self._rest = self._rest[ready:]
        return b"".join(out)

    def _cut(self, text: bytes, kind: str) -> bytes:
        """The records of a text that is complete, however long."""
        out: List[bytes] = []
        while len(text) > MAX_TEXT:
            ready = _whole_characters(text[:MAX_TEXT]) or MAX_TEXT
            out.append(self._record(GOES_ON, text[:ready]))
            text = text[ready:]
        out.append(self._record(kind, text))
        return b"".join(out)

    def _whole(self, block: bytes) -> bytes:
        """Records of the whole lines of a block: all of them by one formatting."""
        lines = block.split(b"\n")
        self._rest = lines.pop()
        if not lines:
            return b""
        if _has_long_line(block):
            return b"".join(map(self._line, lines))
        self._remember(lines)
        count, first = len(lines), self._sequence.next
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
        return b"%d %b %b %b%b %b\n" % (number, self._sequence.stamp(), self._rank, self._stream, mark, text)

    def _remember(self, lines: List[bytes]) -> None:
        if len(lines) < _KEPT_LINES:
            self.last_lines.extend([line[:_KEPT_BYTES] for line in lines])
        else:  # of one block, which bounds their bytes: no need to look at each
            self.last_lines = deque(lines[-_KEPT_LINES:], _KEPT_LINES)

    def _set_due(self) -> None:
        times = [self._partial_due] if self._rest and self._partial_due else []
        times += [self._progress_due] if self._held is not None else []
        self.due = min(times) if times else None


def _has_long_line(block: bytes) -> bool:
    """Whether a newline of the block is more than MAX_TEXT bytes behind the one before; few steps, not one per line."""
    last, position = block.rfind(b"\n"), -1
    while position < last:
        following = block.rfind(b"\n", position + 1, position + 2 + MAX_TEXT)
        if following < 0:
            return True
        position = following
    return False


def _whole_characters(text: bytes) -> int:
    """How many bytes of `text` end with a whole UTF-8 character; all, where the end is no UTF-8 at all."""
    for back in range(1, min(4, len(text)) + 1):
        byte = text[-back]
        if byte & 0xC0 == 0x80:
            continue
        need = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return len(text) if need <= back else len(text) - back
    return len(text)
