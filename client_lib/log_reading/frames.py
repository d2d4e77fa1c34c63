"""The client's side of the framed log stream: bytes to frames, and resuming after a broken connection.

Format: client_lib.spec.log_stream. The caller passes the connection as an `OpenStream`.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from client_lib.errors import BadResponse, ClientLibError
from client_lib.spec.log_stream import Position, format_cursor, parse_cursor
from client_lib.transport.failures import Transient
from client_lib.transport.rest import FIRST_PAUSE_S, LONGEST_PAUSE_S

Params = Mapping[str, str | list[str]]

OpenStream = Callable[[Params], Iterable[bytes]]
"""Function that requests /jobs/{name}/logs as frames with these parameters and yields the bytes of the body as soon as
they arrive, in pieces of any length. A ClientLibError is final; after Transient, OSError or a body that ends too early
the request is repeated. A generator is closed when its reader stops."""

MAX_FRAME = 16 * 2**20


class Records(NamedTuple):
    """Whole records of one worker's log; `end` is the offset of the next one."""

    attempt: int
    worker: int
    end: int
    data: bytes


class Gap(NamedTuple):
    """Number of records of one worker's log that are lost."""

    attempt: int
    worker: int
    records: int


class JobStatus(NamedTuple):
    facts: dict[str, Any]
    last: bool
    """The last frame: every line was sent."""


Frame = Records | Gap | JobStatus


def read_frames(chunks: Iterable[bytes]) -> Iterator[Frame]:
    """The whole frames in a body; an incomplete last one is left out. Unknown frames of a newer server are skipped.

    Raises BadResponse: this is no log stream.
    """
    rest = b""
    for chunk in chunks:
        buffer = rest + chunk if rest else chunk
        at = 0
        while (newline := buffer.find(b"\n", at)) >= 0:
            size, frame = _head(buffer[at:newline])
            begin, end = newline + 1, newline + 1 + size
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
    """Bytes that follow the header line, and the frame without them."""
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


class FrameStream:
    """The frames of one job's log, each exactly once, over as many connections as needed."""

    def __init__(self, open_stream: OpenStream, params: Params, *, retry_s: float = 30.0) -> None:
        """`retry_s`: the iteration fails after this time without any frame from the server."""
        self._open = open_stream
        self._params = dict(params)
        self._retry_s = retry_s
        self._offsets: dict[Position, int] = parse_cursor(str(self._params.pop("cursor", "")))
        self._frame_at = 0.0

    @property
    def cursor(self) -> str:
        """Position after the frames that were yielded, for resuming here or in another process."""
        return format_cursor(self._offsets)

    def __iter__(self) -> Iterator[Frame]:
        self._frame_at, pause_s = time.monotonic(), FIRST_PAUSE_S
        while True:
            began = self._frame_at
            failure: Exception = BadResponse("the log stream ended in the middle")
            try:
                for frame in self._one_body():
                    yield frame
                    if isinstance(frame, JobStatus) and frame.last:
                        return
            except Transient as error:
                failure = error.error
            except ClientLibError:  # also ServerUnreachable, which is an OSError: `open_stream` has retried it
                raise
            except OSError as error:
                failure = error
            if self._frame_at > began:
                pause_s = FIRST_PAUSE_S
            elif time.monotonic() - self._frame_at + pause_s > self._retry_s:
                raise failure
            time.sleep(random.uniform(pause_s / 2, pause_s))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _one_body(self) -> Iterator[Frame]:
        params = self._params | ({"cursor": self.cursor} if self._offsets else {})
        body = self._open(params)
        try:
            for frame in read_frames(body):
                self._frame_at = time.monotonic()
                if isinstance(frame, Records):
                    # noted before the yield: a consumer that never comes back has received them
                    self._offsets[frame.attempt, frame.worker] = frame.end
                elif isinstance(frame, JobStatus):
                    self._note_beginning(frame)
                yield frame
        finally:
            close = getattr(body, "close", None)
            if close:
                close()

    def _note_beginning(self, status: JobStatus) -> None:
        """Take the cursor after the lines that tail and since skipped from the first status. Sent again, tail and since
        would skip lines that came meanwhile, so only the cursor is used from then on."""
        self._offsets.update(parse_cursor(status.facts.pop("cursor", "")))
        self._params.pop("tail", None)
        self._params.pop("since", None)
