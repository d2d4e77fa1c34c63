"""The log of one remote worker: append-only segments on disk (client_lib.launcher_protocol.record),
addressed by offset; and the worker's clock, by the times of the newest records.

The files are authoritative: a worker asks for their length and continues there, so no record is
stored twice and none is lost unnoticed. Blocking file I/O, for one thread at a time.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Iterator
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from client_lib.durable import read_json, sync, write_all, write_json
from client_lib.errors import InvalidRequest
from client_lib.launcher_protocol.log_segments import Segments
from client_lib.launcher_protocol.record import Record, parse
from client_lib.spec.request import LogLengths
from server_stub.files.job_dirs import opener

# a sync at each arrival would cost more than the rest; the worker keeps what is not durable
SYNC_EVERY_S = 1.0
SEGMENT_BYTES = 64 * 2**20  # the limit of a log removes one segment at a time
CLOCK_FILE = "clock.json"
"""In the directory of the worker."""
_DIFFERENCES = 64  # of clocks that are kept
_CHANGE_S = 0.001  # a smaller change is not written
_DELAYS_S = 0.3  # three times the longest delay of a record in an agent


class LogFile(Segments):
    """The only writer of a log directory on this machine."""

    def __init__(self, folder: Path, limit_bytes: int, segment_bytes: int = SEGMENT_BYTES) -> None:
        """Call `resume` first."""
        super().__init__(str(folder), limit_bytes, segment_bytes)
        self._synced_at = 0.0
        self._durable = 0
        self._clock = WorkerClock(folder.parent)

    def put(self, offset: int, data: bytes, *, gap: bool) -> int:
        """Store whole records that begin at `offset`, without records that are stored already, and
        return the number of missing records before them. If records are missing, the new ones are
        ignored unless `gap` is set, which says that the worker has lost the records in between.
        Raises InvalidRequest for anything but whole records."""
        new = data[max(0, self.offset - offset) :]
        if not new or (offset > self.offset and not gap):
            return 0
        first, last = _ends(new)
        missing = max(0, first.seq - self.next_seq)
        if offset > self.offset:
            self._begin_segment(offset)
        self._append(new)
        self._clock.note(last.time, time.time())
        if time.monotonic() - self._synced_at >= SYNC_EVERY_S:
            self.sync()
        return missing

    def add(self, records: bytes) -> tuple[int, int]:
        """Store the records that are new by their seq, and skip all other lines. Returns (new,
        missing). After a hole the offsets are made up."""
        new = missing = 0
        for run in _runs(records, self.next_seq):
            if run.first_seq > self.next_seq:
                missing += run.first_seq - self.next_seq
                self._begin_segment(self.offset + 1 if self._sizes else self.offset)
            self._append(run.records)
            new += run.last_seq - run.first_seq + 1
        return new, missing

    def lengths(self) -> LogLengths:
        return LogLengths(length=self.offset, durable=self._durable, next_seq=self.next_seq)

    def sync(self) -> None:
        """Make everything durable."""
        if self._durable < self.offset:
            sync(self._file(max(self._sizes)))
            self._durable = self.offset
        self._synced_at = time.monotonic()

    def _append(self, data: bytes) -> None:
        """Append whole records; each segment begins with a whole record. After an error the first
        of the records may be stored.
        """
        while data:
            if not self._sizes or self._sizes[max(self._sizes)] >= self._segment:
                self._begin_segment(self.offset)
            start = max(self._sizes)
            cut = data.find(b"\n", self._segment - self._sizes[start] - 1) + 1 or len(data)
            part = data[:cut]
            _, last = _ends(part)
            with open(self._file(start), "ab", buffering=0) as file:
                try:
                    write_all(file.fileno(), part)
                except OSError:  # a full disk may have stored a part
                    file.truncate(self._sizes[start])
                    raise
            self._sizes[start] += cut
            self.offset += cut
            self.next_seq = last.seq + 1
            data = data[cut:]

    def _begin_segment(self, offset: int) -> None:
        """Make the current segment durable and begin another one, so that a loss of power leaves no
        hole between the two.
        """
        if self._sizes:
            self.sync()
        os.makedirs(self.path, mode=0o700, exist_ok=True)
        os.close(self._begin(offset))
        try:
            sync(self.path)
        except OSError:  # the next records may be of another offset
            del self._sizes[offset]
            os.unlink(self._file(offset))
            raise
        self._durable = self.offset = offset


def _ends(records: bytes) -> tuple[Record, Record]:
    """The first and the last record."""
    if not records.endswith(b"\n"):
        raise InvalidRequest("the log ends within a record")
    first = records[: records.find(b"\n")]
    last = records[records.rfind(b"\n", 0, -1) + 1 :]
    try:
        return parse(first), parse(last)
    except ValueError as error:
        raise InvalidRequest(
            f"{first[:80]!r} or {last[:80]!r} is no record of a worker's log"
        ) from error


class _Run(NamedTuple):
    """Records without a hole between them."""

    first_seq: int
    last_seq: int
    records: bytes


def _runs(text: bytes, wanted: int) -> Iterator[_Run]:
    """The runs from the record `wanted` on."""
    new: list[tuple[int, bytes]] = []
    for line in text.split(b"\n")[:-1]:
        with contextlib.suppress(ValueError):  # other output of the pod
            seq = parse(line).seq
            if seq >= wanted:
                new.append((seq, line + b"\n"))
                wanted = seq + 1
    # within a run seq and index grow alike
    for _, numbered in groupby(enumerate(new), lambda each: each[1][0] - each[0]):
        run = [each for _, each in numbered]
        first_seq, _ = run[0]
        last_seq, _ = run[-1]
        yield _Run(first_seq, last_seq, b"".join(line for _, line in run))


# --- the clock
#
# A record was stamped before it arrived, by up to the time between two requests of the agent. So of
# several differences between stamp and arrival the largest is nearest to the difference of the
# clocks.


class ClockDifference(NamedTuple):
    ahead_s: float
    """Seconds by which the worker's clock is ahead of the server's, or less."""
    arrivals: int
    """Number of arrivals that it follows from."""

    def ahead_of(self, other: ClockDifference) -> float:
        """Seconds by which this clock is ahead of another; 0.0 if the
        arrivals are too few to tell.
        """
        ahead_s = self.ahead_s - other.ahead_s
        return (
            ahead_s
            if abs(ahead_s) > _DELAYS_S / max(1, min(self.arrivals, other.arrivals))
            else 0.0
        )


class WorkerClock:
    """Writes the file of one worker. Each server process starts a new measurement."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / CLOCK_FILE
        self._ahead: deque[float] = deque(maxlen=_DIFFERENCES)
        self._written = ClockDifference(0.0, 0)

    def note(self, stamp: str, now: float) -> None:
        """Note the stamp of the newest record that has arrived now."""
        with contextlib.suppress(ValueError):  # a job may write anything to its log
            self._ahead.append(
                datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp() - now
            )
            known = ClockDifference(max(self._ahead), len(self._ahead))
            more = known.arrivals >= 2 * self._written.arrivals
            if more or abs(known.ahead_s - self._written.ahead_s) > _CHANGE_S:
                self._written = known
                with contextlib.suppress(OSError):  # the disk is full: the log says so
                    write_json(str(self._file), known._asdict())


def read_clock(folder: Path) -> ClockDifference | None:
    """The clock of the worker with this directory; None: it is not known, as
    of workers on this machine.
    """
    with contextlib.suppress(OSError, TypeError, ValueError, LookupError):
        found = read_json(str(folder / CLOCK_FILE), opener(folder)) or {}
        return ClockDifference(float(found["ahead_s"]), int(found["arrivals"]))
    return None
