"""The log of a job for a client: entries with all the facts about a line, or plain lines. The
caller passes the connection as an `OpenStream`; a broken one is resumed at the cursor. Format:
client_lib.spec.paths, client_lib.launcher_protocol.record. Standard library only."""

import json
import logging
import random
import re
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any, NamedTuple

from client_lib.errors import BadResponse, ClientLibError
from client_lib.launcher_protocol import record as log_format
from client_lib.launcher_protocol.record import NO_RANK
from client_lib.launcher_protocol.whole_lines import WholeLines
from client_lib.spec.paths import Position, format_cursor, parse_cursor
from client_lib.transport.failures import Transient
from client_lib.transport.rest import FIRST_PAUSE_S, LONGEST_PAUSE_S, WARN_AFTER_S

Params = Mapping[str, str | list[str]]
OpenStream = Callable[[Params], Iterable[bytes]]
"""Function that requests /jobs/{name}/logs as frames with these parameters and yields the bytes of
the body as soon as they arrive, in pieces of any length. A ClientLibError is final; after
Transient, OSError or a body that ends too early the request is repeated. A generator is closed when
its reader stops."""

UNANSWERED_PAUSE_S = 0.8
"""Longest pause while nothing answers: a server that is up for a second is found, and a connection
that nobody takes costs nothing."""
MAX_FRAME = 16 * 2**20
HELD_MAX = 64 * 2**20
"""Bytes (or characters, of entries) of lines without an end that a reader of whole lines holds: of
all ranks together. A longer line is given in pieces."""
# each pattern matches a whole record, so that a scan reads no byte twice and skips bytes that no
# launcher wrote
_FIELDS = re.compile(log_format.RECORD)
_ORIGIN = {"rank": f"({log_format.RANK}", "stream": f"{log_format.STREAM})"}  # one group
_PIECES = re.compile(
    log_format.pattern(**_ORIGIN, mark=f"({log_format.MARK})", text="(.*)").encode()
)
_OF_LAUNCHER = f"{NO_RANK} {log_format.LAUNCHER}".encode()
_log = logging.getLogger("client_lib")
_EPOCH = datetime.fromtimestamp(0, timezone.utc)


class Records(NamedTuple):
    """Whole records of one worker's log; `end` is the offset of the next one."""

    attempt: int
    worker: int
    end: int
    data: bytes


class Gap(NamedTuple):
    attempt: int
    worker: int
    records: int
    """Number of records of this worker's log that are lost."""


class JobStatus(NamedTuple):
    facts: dict[str, Any]
    last: bool
    """The last frame: every line was sent."""


Frame = Records | Gap | JobStatus
OnState = Callable[["dict[str, Any]"], None]
"""Function that receives state, reason, message and attempt: at the
beginning, and at each change.
"""


def read_frames(chunks: Iterable[bytes]) -> Iterator[Frame]:
    """The whole frames in a body; an incomplete last one is left out. Unknown frames of a newer
    server are skipped. Raises BadResponse: this is no log stream."""
    rest = b""
    for chunk in chunks:
        buffer = rest + chunk if rest else chunk
        at = 0
        while (newline := buffer.find(b"\n", at)) >= 0:
            size, frame = _head(buffer[at:newline])
            begin = newline + 1
            end = newline + 1 + size
            if end > len(buffer):
                break
            if isinstance(frame, Records):
                yield frame._replace(data=buffer[begin:end])
            elif frame:
                yield frame
            at = end
        rest = buffer[at:]
        if len(rest) > MAX_FRAME:
            raise BadResponse("the log stream holds a frame without an end")


def _head(line: bytes) -> tuple[int, Frame | None]:
    """Parse a header line: the length of the body, and the frame with an empty body."""
    word, _, rest = line.partition(b" ")
    try:
        if word == b"@log":
            attempt, worker, end, size = map(int, rest.split())
            if 0 <= size <= MAX_FRAME:
                return size, Records(attempt, worker, end, b"")
        elif word == b"@gap":
            return 0, Gap(*map(int, rest.split()))
        elif word in (b"@state", b"@end"):
            return 0, JobStatus(dict(json.loads(rest)), word == b"@end")
        elif word.startswith(b"@"):
            return 0, None
    except (ValueError, TypeError) as error:
        raise BadResponse(f"the log stream holds a broken frame: {line[:80]!r}") from error
    raise BadResponse(f"this is no log stream: {line[:80]!r}")


class _Patience:
    """Pauses between the connections of one reader, and their limit: `retry_s` since news came, or
    since the last change between a server that answers and one that does not. A server that is up
    for a second now and then is waited for; one that breaks off every connection at once is not."""

    def __init__(self, retry_s: float) -> None:
        self._retry_s = retry_s
        self._since = time.monotonic()
        self._answered: bool | None = None
        self._pause_s = FIRST_PAUSE_S
        self._warned = False

    def pause(
        self, failure: Exception, retry_after_s: float, *, answered: bool, news: bool
    ) -> None:
        """Wait until the next connection is due. Raises `failure`: it would be too late."""
        now = time.monotonic()
        changed = self._answered is not None and answered != self._answered
        if news or changed:
            self._since = now
            self._pause_s = FIRST_PAUSE_S
            self._warned = False
        self._answered = answered
        for_s = now - self._since
        if for_s + self._pause_s > self._retry_s:
            if self._retry_s > 0 and isinstance(failure, ClientLibError):
                failure.message += f" (tried for {for_s:.1f} s)"
            raise failure
        if for_s > WARN_AFTER_S and not self._warned:
            self._warned = True
            _log.warning("%s; trying again for up to %.0f s", failure, self._retry_s)
        time.sleep(max(retry_after_s, random.uniform(self._pause_s / 2, self._pause_s)))
        nobody = not answered and isinstance(failure, OSError)  # not even a proxy, or a busy server
        longest_s = UNANSWERED_PAUSE_S if nobody else LONGEST_PAUSE_S
        self._pause_s = min(2 * self._pause_s, longest_s)


def _resumed(open_stream: OpenStream, params: Params, retry_s: float) -> Iterator[Frame]:
    """The frames of one job's log, each exactly once, over as many connections as
    needed. Raises as `log_entries`.
    """
    # the offsets are the cursor
    wanted = dict(params)
    offsets = dict[Position, int]()
    patience = _Patience(retry_s)
    while True:
        began = time.monotonic()
        came = set[type]()
        body: Iterator[bytes] = iter(())
        failure: Exception = BadResponse("the log stream ended in the middle")
        retry_after_s = 0.0
        try:
            body = iter(
                open_stream(wanted | ({"cursor": format_cursor(offsets)} if offsets else {}))
            )
            for frame in read_frames(body):
                came.add(type(frame))
                if isinstance(frame, Records):
                    offsets[frame.attempt, frame.worker] = frame.end
                elif isinstance(frame, JobStatus):
                    # the cursor of the first one stands after the lines that tail and since
                    # skipped: a request that repeats them would skip lines that came meanwhile
                    offsets.update(parse_cursor(frame.facts.pop("cursor", "")))
                    wanted = {
                        name: value
                        for name, value in wanted.items()
                        if name not in ("tail", "since")
                    }
                yield frame
                if isinstance(frame, JobStatus) and frame.last:
                    return
        except Transient as error:
            failure = error.error
            retry_after_s = error.retry_after_s
        except ClientLibError:
            # also ServerUnreachable, which is an OSError: no local server is there any more
            raise
        except OSError as error:
            failure = error
        finally:
            if isinstance(body, Generator):
                body.close()
        # each connection begins with a status
        lasted = time.monotonic() - began > LONGEST_PAUSE_S
        patience.pause(
            failure,
            retry_after_s,
            answered=bool(came),
            news=bool(came - {JobStatus}) or (bool(came) and lasted),
        )


# --- what callers read


class LogEntry(NamedTuple):
    """One line of a worker's log, or a piece of one."""

    time: datetime
    """Time at which the launcher read the line; aware, UTC."""
    worker: int
    rank: int | None
    """None: a line of no rank (train.log, messages of the launcher)."""
    attempt: int
    seq: int
    """Counts from 0 within (attempt, worker)."""
    stream: str
    """stdout, stderr, train.log or launcher."""
    kind: str
    """LINE: a whole line, or the last piece of one. GOES_ON: the next entry of this rank and stream
    continues it. PROGRESS: a later entry of this rank and stream replaces it."""
    text: str


def log_params(
    *,
    follow: bool = False,
    tail: int | None = None,
    since: str | None = None,
    rank: int | Iterable[int] | None = None,
    stream: str | Iterable[str] | None = None,
    attempt: int | None = None,
    grep: str | None = None,
    context: int | None = None,
) -> dict[str, str | list[str]]:
    """The parameters of GET /jobs/{name}/logs; what is None or an empty list isn't
    sent. The server checks them.
    """
    ranks = [rank] if isinstance(rank, int) else rank
    lists = {"rank": ranks, "stream": [stream] if isinstance(stream, str) else stream}
    words = {"tail": tail, "since": since, "attempt": attempt, "grep": grep, "context": context}
    return {
        **({"follow": "true"} if follow else {}),
        **{name: str(value) for name, value in words.items() if value is not None},
        **{name: [*map(str, values)] for name, values in lists.items() if values},
    }


def log_entries(
    open_stream: OpenStream,
    params: Params,
    *,
    on_state: OnState | None = None,
    on_gap: Callable[[Gap], None] | None = None,
    retry_s: float = 30.0,
) -> Iterator[LogEntry]:
    """Every entry, as soon as it exists; ends after the last one (`follow`: when the job is final
    as well). Messages of the launcher are included, as stream `launcher`. Survives broken
    connections and restarts of the server without losing or repeating an entry. Raises the errors
    of `open_stream`, and the last failure after `retry_s` in which nothing answered at all, or in
    which every connection broke off at once and brought nothing new."""
    stamp = ""
    moment = _EPOCH
    facts: dict[str, Any] = {}
    for frame in _resumed(open_stream, params, retry_s):
        if isinstance(frame, JobStatus):
            # each connection begins with a status, each stream ends so
            if on_state and frame.facts != facts:
                on_state(frame.facts)
            facts = frame.facts
            continue
        if isinstance(frame, Gap):
            if on_gap:
                on_gap(frame)
            continue
        attempt, worker, _, data = frame
        for seq, written, rank, stream, kind, text in _FIELDS.findall(
            data.decode("utf-8", "replace")
        ):
            if written != stamp:
                stamp = written
                moment = _EPOCH
                # else no launcher wrote this: the line is kept without its time
                with suppress(ValueError):
                    moment = datetime.fromisoformat(written[:-1] + "+00:00")
            number = None if rank == NO_RANK else int(rank)
            yield LogEntry(moment, worker, number, attempt, int(seq), stream, kind, text)


def log_lines(open_stream: OpenStream, params: Params, *, retry_s: float = 30.0) -> Iterator[str]:
    """The text of each line of `raw_lines`, bytes that are no UTF-8 replaced."""
    for line in raw_lines(open_stream, params, retry_s=retry_s):
        yield line.decode("utf-8", "replace")


def raw_lines(open_stream: OpenStream, params: Params, *, retry_s: float = 30.0) -> Iterator[bytes]:
    """The bytes of every line, whole (see HELD_MAX), without its end. Of a run of progress only the
    last one. Only the job's own lines, unless `params` name streams. Otherwise as `log_entries`."""
    own = "stream" not in params
    # the server counts the tail; without one it is cheaper to send everything
    if own and "tail" in params:
        params = {**params, "stream": list(log_format.JOB_STREAMS)}
    whole = WholeLines[tuple[int, bytes], None, bytes](HELD_MAX)
    newest = 0
    for frame in _resumed(open_stream, params, retry_s):
        if not isinstance(frame, Records):
            continue
        attempt, worker, _, data = frame
        if attempt > newest:  # the previous attempt is complete
            newest = attempt
            yield from (text for _, _, text in whole.close())
        for origin, kind, text in _PIECES.findall(data):
            if own and origin == _OF_LAUNCHER:
                continue
            if not (kind or whole.holds):  # the usual case
                yield text
                continue
            for _, _, line in whole.add((worker, origin), None, kind.decode(), text):
                yield line
    yield from (text for _, _, text in whole.close())


class WholeEntries:
    """Joins entries to whole lines (see HELD_MAX), for an output that can't be redrawn. Of each run
    of progress the last entry remains, when the run is over."""

    def __init__(self) -> None:
        self._whole = WholeLines[tuple[int, int | None, str], LogEntry, str](HELD_MAX)
        self._attempt = 0

    def add(self, entry: LogEntry) -> list[LogEntry]:
        """The entries that this one completes."""
        before = self.close() if entry.attempt > self._attempt else []
        self._attempt = max(self._attempt, entry.attempt)
        source = (entry.worker, entry.rank, entry.stream)
        return before + _entries(self._whole.add(source, entry, entry.kind, entry.text))

    def close(self) -> list[LogEntry]:
        """Everything that is held: nothing follows."""
        return _entries(self._whole.close())


def _entries(lines: Iterable[tuple[LogEntry, str, str]]) -> list[LogEntry]:
    return [first._replace(kind=kind, text=text) for first, kind, text in lines]


def whole_entries(entries: Iterable[LogEntry]) -> Iterator[LogEntry]:
    """The entries as `WholeEntries` joins them."""
    whole = WholeEntries()
    for entry in entries:
        yield from whole.add(entry)
    yield from whole.close()
