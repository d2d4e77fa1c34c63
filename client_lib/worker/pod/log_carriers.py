"""The log on its way out of the pod: the spool, and the threads that carry it to the server and to
stdout.

The launcher's segments (launcher_protocol.log_segments) are the spool. A segment that every reader
is done with is deleted. Over a limit the oldest segments are deleted unread, and the next read
reports a gap: the cluster would evict the pod if its volume were over-full.
"""

import os
import sys
import threading
import time
from typing import NamedTuple, Optional, Tuple

from client_lib.durable import write_all
from client_lib.launcher_protocol.log_segments import end_of, segment_name, segments
from client_lib.worker.pod import AgentThread, Backoff, warn
from client_lib.worker.pod.server_channel import ServerClient
from client_lib.worker.server_connection import Rejected, RequestFailed

# longest time a line waits before it is sent, and lower bound on the time between two requests
_POLL_S = 0.1
# longest delay of an ended worker's report because of a log that the server can't take
_LATE_S = 5.0
_LARGE = 256 * 1024  # after a piece of this size more is probably waiting
FULL = 0.8  # of the volume; the rest takes the lines that arrive between two checks
_BLOCK = 1024 * 1024


class LogPiece(NamedTuple):
    """Whole records. `gap`: records between the reader's position and these were deleted."""

    offset: int
    data: bytes
    gap: bool


class Spool:
    """The log directory of one worker."""

    def __init__(self, folder: str, volume_bytes: int) -> None:
        self._folder = folder
        self._limit = int(volume_bytes * FULL)
        self.begin = (0, 0)
        """(seq, offset) of the first record: an earlier pod, or start, of this worker has delivered
        the records before.
        """

    def read(self, at: int) -> Optional[LogPiece]:
        """The next records from this offset on; None: there are none now."""
        for start, size in segments(self._folder):
            if start + size <= at:
                continue
            offset = max(at, start)
            try:
                with open(self._path(start), "rb") as file:
                    file.seek(offset - start)
                    data = file.read(_BLOCK)
            except FileNotFoundError:  # deleted since the listing: the next segment is there
                continue
            whole = data[: data.rfind(b"\n") + 1]
            return LogPiece(offset, whole, offset > at) if whole else None
        return None

    def tidy(self, done: int) -> int:
        """Delete segments before the offset `done`, and the oldest over the limit. Returns
        the bytes deleted unread.
        """
        existing = segments(self._folder)
        kept = sum(size for _, size in existing)
        dropped = 0
        for start, size in existing[:-1]:  # the launcher writes the last one
            if start + size > done and kept <= self._limit:
                break
            os.unlink(self._path(start))
            kept -= size
            dropped += max(0, start + size - max(start, done))
        return dropped

    def newest(self) -> int:
        """A number that changes whenever a rank writes, even without a record: the
        launcher then touches the file.
        """
        existing = segments(self._folder)
        try:
            return os.stat(self._path(existing[-1][0])).st_mtime_ns if existing else 0
        except FileNotFoundError:
            return 0

    def end(self) -> Tuple[int, int]:
        """(seq, offset) of the record that would follow, for a log whose writer is dead."""
        for start, _ in reversed(segments(self._folder)):
            size, seq = end_of(self._path(start))
            if size:
                return seq + 1, start + size
        return self.begin

    def _path(self, start: int) -> str:
        return os.path.join(self._folder, segment_name(start))


# --- carriers


class LogCarrier(AgentThread):
    """Carries the log to one reader. After `finish` and `join` it is delivered, or
    the receiver takes no more.
    """

    def __init__(self, spool: Spool) -> None:
        super().__init__(type(self).__name__, self._carry)
        self._spool = spool
        _, self._at = spool.begin
        self.done = self._at
        """The offset before which the receiver needs no record any more."""
        self._finishing = threading.Event()

    def finish(self) -> None:
        """Note that the launcher writes no more."""
        self._finishing.set()

    def _carry(self) -> None:
        while True:
            last_round = self._finishing.is_set()
            piece = self._spool.read(self._at)
            if (last_round and piece is None) or (piece is not None and not self._deliver(piece)):
                break
            if piece is None or len(piece.data) < _LARGE:
                self._finishing.wait(_POLL_S)
        self.done = sys.maxsize

    def _deliver(self, piece: LogPiece) -> bool:
        """Deliver the piece, and set the position behind it. False: the
        receiver accepts no more.
        """
        raise NotImplementedError


class StdoutCarrier(LogCarrier):
    """Prints the log for `kubectl logs` and for servers out of reach. A thread: a slow
    runtime delays nothing else.
    """

    def _deliver(self, piece: LogPiece) -> bool:
        try:
            write_all(1, piece.data)
        except OSError:  # it is closed
            return False
        self._at = self.done = piece.offset + len(piece.data)
        return True


class ServerCarrier(LogCarrier):
    """Sends the log to the server, over any outage, and repeats nothing."""

    def __init__(self, server: ServerClient, spool: Spool) -> None:
        super().__init__(spool)
        self._server = server
        self._backoff = Backoff()
        self._failing_since: Optional[float] = None
        self.answered_at = time.monotonic()
        """The server last took a piece of the log."""

    def _deliver(self, piece: LogPiece) -> bool:
        try:
            # a server that has lost power asks again for what was not durable
            self._at, durable = self._server.put_log(piece.offset, piece.data, piece.gap)
        except RequestFailed as error:
            now = time.monotonic()
            is_refused = isinstance(error, Rejected)
            if self._failing_since is None:
                self._failing_since = now
                refusal = "the server refuses the log: " if is_refused else ""
                warn("the log waits for the server: %s%s" % (refusal, error))
            is_late = self._finishing.is_set() and now - self._failing_since > _LATE_S
            self.fails = self.fails or is_refused or is_late
            self._backoff.sleep()
            return True
        if self._failing_since is not None:
            warn("the server takes the log again")
            self._failing_since = None
        self.answered_at = time.monotonic()
        self.fails = False
        self._backoff.reset()
        self.done = max(durable, self.done)
        return True
