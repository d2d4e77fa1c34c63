"""Wakes the followers of jobs: one feed per followed job and one tail per worker's log, shared by all its followers.

A follower is an event; `stream` keeps its positions, and nothing is queued for it. When a log grows, its tail notes the
new end and the feed sets the events; the first follower reads the new bytes, the others get the same object. A feed
exists while it has followers. Everything runs on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from client_lib.errors import ClientLibError
from client_lib.spec.paths import HEARTBEAT_S, Position
from server_stub.files.job_dirs import log_dir
from server_stub.logs.file_events import Close, FileEvents, open_file_events
from server_stub.logs.records import LoggedJob, LogQuery, line_filter, next_sequence, sequence_of
from server_stub.logs.render import Frames
from server_stub.logs.segments import BLOCK, LogReader

COALESCE_S = 0.02  # least time between two wakes of the followers: each costs a write per follower
_LOOK_S, _LOOK_MAX_S = 0.02, 0.25  # pauses before a feed looks for logs that no worker has begun yet
_lines = line_filter(LogQuery())


class LogSource(Protocol):
    """`server_stub.service.lookup.JobLookup` is one."""

    async def next_logs(self, job: LoggedJob) -> LoggedJob:
        """The job when its version is greater than that of `job`. Raises NotFound: it is deleted."""
        ...


class Chunk(NamedTuple):
    """The newest records of one log and their frame, made once for all followers that have read up to its start."""

    start: int
    end: int
    data: bytes
    frame: bytes
    first: int | None
    """seq of its first record; None: no launcher wrote these bytes."""
    next: int | None


class Tail:
    """The growing end of one worker's log."""

    def __init__(self, position: Position, directory: Path) -> None:
        self.position = position
        self._reader = LogReader(directory)
        self._chunk: Chunk | None = None
        self.end = self._reader.end()

    def look(self) -> None:
        self.end = self._reader.end()

    def close(self) -> None:
        """Close all files and keep none open afterwards."""
        self._reader.close()

    def chunk_at(self, offset: int) -> Chunk | None:
        """The newest records, if they begin at `offset`; the first call reads them."""
        if self._chunk and self._chunk.start == offset:
            return self._chunk
        if self.end - offset > BLOCK or (self._chunk and offset < self._chunk.start):
            return None
        block = self._reader.block(offset)
        if not block or block.start != offset:
            return None
        data = block.data
        self._chunk = Chunk(
            offset,
            block.end,
            data,
            Frames().records(self.position, block.end, _lines(data)),
            sequence_of(data),
            next_sequence(data),
        )
        return self._chunk


class Feed:
    """The state that all followers of one job share."""

    def __init__(self, job: LoggedJob, source: LogSource, events: FileEvents, tick_s: float) -> None:
        self.job = job
        self.tails: dict[Position, Tail] = {}
        self.over = False
        """True after the job was deleted or the server began to stop. Streams end without `@end`."""
        self.followers: set[asyncio.Event] = set()
        """One event per follower, set when there is news."""
        self._source = source
        self._events = events
        self._tick_s = tick_s
        self._watches: list[Close] = []
        self._loop = asyncio.get_running_loop()
        self._woken_at = 0.0
        self._wake_later: asyncio.TimerHandle | None = None
        self._find_logs(1)
        self._tasks = [self._loop.create_task(each) for each in (self._watch_job(), self._tick(), self._look())]

    def close(self) -> None:
        self.over = True
        for task in self._tasks:
            task.cancel()
        if self._wake_later:
            self._wake_later.cancel()
        for close in self._watches:
            close()
        self._watches.clear()
        for tail in self.tails.values():
            tail.close()
        self._wake_now()

    async def _watch_job(self) -> None:
        """Follow the states of the job and wake the followers at each."""
        try:
            while not self.job.state.final:
                attempt = self.job.attempt
                # State and ends change in one step: a follower that sees a final state sees the true ends too.
                self.job = await self._source.next_logs(self.job)
                self._find_logs(attempt)
                for tail in self.tails.values():
                    tail.look()
                self._wake_now()
        except ClientLibError:
            pass  # deleted (NotFound), or the database fails: the next request gets the error
        finally:
            if not self.job.state.final:
                self.over = True
                self._wake_now()

    async def _tick(self) -> None:
        """Wake the followers for heartbeats."""
        while not self.job.state.final:
            await asyncio.sleep(self._tick_s)
            self._wake_now()

    async def _look(self) -> None:
        """Look for logs that workers begin, less often while there is none."""
        pause_s, known = _LOOK_S, -1
        while not self.job.state.final:
            pause_s = _LOOK_S if known != len(self.tails) else min(pause_s * 1.2, _LOOK_MAX_S)
            known = len(self.tails)
            await asyncio.sleep(pause_s)
            if self._find_logs(self.job.attempt):
                self._wake()

    def _find_logs(self, oldest: int) -> bool:
        """Open the logs of the attempts from `oldest` on, where there are any; returns True if there was a new one."""
        found = False
        for attempt in range(oldest, self.job.attempt + 1):
            for worker in range(self.job.n_workers):
                if (attempt, worker) not in self.tails:
                    found = self._open_log((attempt, worker)) or found
        return found

    def _open_log(self, position: Position) -> bool:
        """Open a log; returns False if there is none. It is watched before it is read, so that no change is missed."""
        directory = log_dir(self.job.job_dir, *position)

        def changed() -> None:
            tail.look()
            self._wake()

        try:
            self._watches.append(self._events.watch(directory, changed))
        except (FileNotFoundError, NotADirectoryError):
            return False
        tail = self.tails[position] = Tail(position, directory)
        return True

    def _wake(self) -> None:
        """Wake the followers: now, or a moment later if they were just woken."""
        wait_s = self._woken_at + COALESCE_S - self._loop.time()
        if wait_s <= 0:
            self._wake_now()
        elif not self._wake_later:
            self._wake_later = self._loop.call_later(wait_s, self._wake_now)

    def _wake_now(self) -> None:
        if self._wake_later:
            self._wake_later.cancel()
            self._wake_later = None
        self._woken_at = self._loop.time()
        for news in self.followers:
            news.set()


class LogHub:
    """One per server process. Make it on the event loop."""

    def __init__(
        self, source: LogSource, events: FileEvents | None = None, *, heartbeat_s: float = HEARTBEAT_S
    ) -> None:
        self.tick_s = heartbeat_s / 5
        """Interval of the heartbeat check, in seconds."""
        self.silence_s = heartbeat_s - self.tick_s
        """A reader that got nothing for so many seconds gets a heartbeat at the next check."""
        self._source = source
        self._events = events or open_file_events()
        self._feeds: dict[str, Feed] = {}
        self._closed = False

    @property
    def followers(self) -> int:
        """The number of open streams; for `/metrics`."""
        return sum(len(feed.followers) for feed in self._feeds.values())

    @contextmanager
    def follow(self, job: LoggedJob) -> Iterator[tuple[Feed, asyncio.Event]]:
        """Follow `job` during the block; yields the feed and the event of this follower."""
        feed = self._feeds.get(job.job_id)
        if feed is None or feed.over:
            feed = self._feeds[job.job_id] = Feed(job, self._source, self._events, self.tick_s)
        feed.over = feed.over or self._closed
        news = asyncio.Event()
        feed.followers.add(news)
        try:
            yield feed, news
        finally:
            feed.followers.discard(news)
            if not feed.followers:
                if self._feeds.get(job.job_id) is feed:
                    del self._feeds[job.job_id]
                feed.close()

    def close(self) -> None:
        """End every followed stream without `@end`, so that its reader resumes at the next server. Call it when the
        server begins to stop, before it waits for open answers."""
        self._closed = True
        for feed in list(self._feeds.values()):
            feed.close()
        self._events.close()
