"""Who follows which job: one feed per followed job, one tail per worker's log, shared by all followers of it.

A follower is an event and its positions are its own (`stream`); nothing is queued for it. When a log grows, its tail
notes the new end and wakes the followers; the first that looks reads the new bytes, the others are handed the same
object. A feed lives as long as it has followers. Event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from client_lib.errors import ClientLibError
from client_lib.spec.log_stream import HEARTBEAT_S, Position
from server_stub.file_events import FileEvents, Watch, open_file_events
from server_stub.logs.records import next_sequence, sequence_of
from server_stub.logs.render import Frames
from server_stub.logs.segments import BLOCK, LogReader
from server_stub.logs.source import JobLogs, LogDirectory, LogSource

MANY_FOLLOWERS = 50  # above this one feed wakes them at most every COALESCE_S: each wake costs a write per follower
COALESCE_S = 0.02


class Chunk(NamedTuple):
    """The newest records of one log, made ready once for all followers that stand at its start."""

    start: int
    end: int
    data: bytes
    frame: bytes
    first: int | None
    """seq of its first record; None: bytes that no launcher wrote."""
    next: int | None


class Tail:
    """The growing end of one worker's log."""

    def __init__(self, position: Position, directory: Path) -> None:
        self.position = position
        self._reader = LogReader(directory)
        self._chunk: Chunk | None = None
        self.end = self._reader.end()

    def look(self) -> None:
        """Note how far the log reaches now."""
        self.end = self._reader.end()

    def chunk_at(self, offset: int) -> Chunk | None:
        """The newest records, if `offset` is where they begin; reads them (they were just written) if nobody has."""
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
            Frames().records(self.position, block.end, data),
            sequence_of(data),
            next_sequence(data),
        )
        return self._chunk


def leave() -> bool:
    """What a follower takes by itself while its answer is busy: nothing."""
    return False


class Follower:
    """Told when its feed has news."""

    def __init__(self) -> None:
        self.news = asyncio.Event()
        self.take: Callable[[], bool] = leave
        """Asked first: deals with the news at once, or says False and is woken."""


class Feed:
    """All that the followers of one job share."""

    def __init__(
        self, job: JobLogs, source: LogSource, directory: LogDirectory, events: FileEvents, tick_s: float
    ) -> None:
        self.job = job
        self.tails: dict[Position, Tail] = {}
        self.over = False
        """No more news will come: the job was deleted, or the server stops. Streams end without `@end`."""
        self.followers: set[Follower] = set()
        self._source = source
        self._directory = directory
        self._events = events
        self._tick_s = tick_s
        self._watches: dict[Path, Watch] = {}
        self._loop = asyncio.get_running_loop()
        self._woken_at = 0.0
        self._wake_later: asyncio.TimerHandle | None = None
        self._find_logs()
        self._task = self._loop.create_task(self._watch_job())

    def close(self) -> None:
        self.over = True
        self._task.cancel()
        if self._wake_later:
            self._wake_later.cancel()
        for watch in self._watches.values():
            watch.close()
        self._watches.clear()
        self._wake_now()

    async def _watch_job(self) -> None:
        """Follow the job's states; between them, see to it that nobody waits without a heartbeat."""
        ticks = self._loop.create_task(self._tick())
        try:
            while not self.job.state.final:
                job = await self._source.next_logs(self.job)
                # State and ends change in one step: a follower that sees a final state sees the true ends too.
                self.job = job
                self._find_logs()
                for tail in self.tails.values():
                    tail.look()
                self._wake_now()
        except ClientLibError:
            pass  # deleted (NotFound), or the database fails: whoever asks again is told
        finally:
            ticks.cancel()
            if not self.job.state.final:
                self.over = True
                self._wake_now()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._tick_s)
            self._wake_now()

    def _find_logs(self) -> None:
        """Take up the logs that are there, and watch for those that aren't yet."""
        needed: set[Path] = set()
        for attempt in range(1, self.job.attempt + 1):
            for worker in range(self.job.n_workers):
                directory = self._directory(self.job.job_dir, attempt, worker)
                if (attempt, worker) in self.tails or self._take_up((attempt, worker), directory):
                    needed.add(directory)
                elif attempt == self.job.attempt:
                    needed.add(self._watch_parent((attempt, worker), directory))
        for path in self._watches.keys() - needed:
            self._watches.pop(path).close()

    def _take_up(self, position: Position, directory: Path) -> bool:
        """Whether the log is there. Watched first and looked at then, so that no change falls between the two."""

        def changed() -> None:
            tail.look()
            self._wake()

        try:
            watch = self._events.watch(directory, changed)
        except (FileNotFoundError, NotADirectoryError):
            return False
        previous = self._watches.pop(directory, None)
        if previous:
            previous.close()
        self._watches[directory] = watch
        tail = self.tails[position] = Tail(position, directory)
        return True

    def _watch_parent(self, position: Position, directory: Path) -> Path:
        """The nearest folder above that is there, watched; or the log's own, if it has just been made."""
        for parent in directory.parents:
            if parent in self._watches:
                return parent
            try:
                self._watches[parent] = self._events.watch(parent, self._folder_changed)
            except (FileNotFoundError, NotADirectoryError):
                continue
            child = _child_towards(parent, directory)
            if not child.exists():
                return parent
            # it was made between the two looks
            return directory if self._take_up(position, directory) else self._watch_parent(position, directory)
        raise FileNotFoundError(str(directory))

    def _folder_changed(self) -> None:
        if not self.over:
            self._find_logs()
            self._wake()

    def _wake(self) -> None:
        """Soon; at once unless there are many followers and the last time was a moment ago."""
        if self._wake_later:
            return
        wait_s = self._woken_at + COALESCE_S - self._loop.time()
        if len(self.followers) <= MANY_FOLLOWERS or wait_s <= 0:
            self._wake_now()
        else:
            self._wake_later = self._loop.call_later(wait_s, self._wake_now)

    def _wake_now(self) -> None:
        if self._wake_later:
            self._wake_later.cancel()
            self._wake_later = None
        self._woken_at = self._loop.time()
        for follower in self.followers:
            if not follower.take():
                follower.news.set()


def _child_towards(parent: Path, directory: Path) -> Path:
    return parent / directory.relative_to(parent).parts[0]


class LogHub:
    """One per server process. Make it on the event loop."""

    def __init__(
        self,
        source: LogSource,
        directory: LogDirectory,
        events: FileEvents | None = None,
        *,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        """`directory(job_dir, attempt, worker)` says where a worker's segments lie (server_stub.runtimes.log_dir)."""
        self.tick_s = heartbeat_s / 5
        """So often every follower looks whether its reader has waited for long."""
        self.silence_s = heartbeat_s - self.tick_s
        """At the first tick behind this, a reader who got nothing gets a sign of life."""
        self._source = source
        self.directory = directory
        self._events = events or open_file_events()
        self._feeds: dict[str, Feed] = {}
        self._closed = False

    @property
    def followers(self) -> int:
        """How many streams are followed now; for `/metrics`."""
        return sum(len(feed.followers) for feed in self._feeds.values())

    @contextmanager
    def follow(self, job: JobLogs) -> Iterator[tuple[Feed, Follower]]:
        """A place among the followers of `job`, for as long as the block runs."""
        feed = self._feeds.get(job.job_id)
        if feed is None or feed.over:
            feed = self._feeds[job.job_id] = Feed(job, self._source, self.directory, self._events, self.tick_s)
        feed.over = feed.over or self._closed
        follower = Follower()
        feed.followers.add(follower)
        try:
            yield feed, follower
        finally:
            feed.followers.discard(follower)
            if not feed.followers:
                if self._feeds.get(job.job_id) is feed:
                    del self._feeds[job.job_id]
                feed.close()

    def close(self) -> None:
        """End every followed stream without `@end`, so that its reader resumes at the next server. Call it when the
        server begins to stop: before it waits for its open answers."""
        self._closed = True
        for feed in list(self._feeds.values()):
            feed.close()
        self._events.close()
