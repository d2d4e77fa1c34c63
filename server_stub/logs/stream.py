"""One answer to one reader: state, history, then the live lines, then the end. Holds positions, and no lines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from functools import partial
from sys import maxsize
from time import monotonic

from client_lib.errors import NotFound
from client_lib.spec.log_stream import Position
from server_stub.logs.history import history, read_block
from server_stub.logs.hub import Feed, Follower, LogHub, Tail, leave
from server_stub.logs.merge import Part
from server_stub.logs.outlet import Outlet
from server_stub.logs.query import LogQuery
from server_stub.logs.records import line_filter, missing_before, next_sequence
from server_stub.logs.render import Frames, Renderer, facts
from server_stub.logs.segments import LogReader
from server_stub.logs.source import JobLogs
from server_stub.logs.starts import find_starts
from server_stub.ranks import refuse_unknown

SILENT_BYTES = 2**20  # so much filtered-out log is passed over before the reader is told of its new position


def stream(
    hub: LogHub, job: JobLogs, query: LogQuery, renderer: Renderer, outlet: Outlet | None = None
) -> AsyncGenerator[bytes, None]:
    """The body of the answer. It ends without `@end` where the job was deleted or the server stops.

    Where an `outlet` is given, what comes while the next piece is awaited may be written to it instead.

    Raises NotFound, at once: there is no such attempt, or no such rank.
    """
    if query.attempt is not None and query.attempt > job.attempt:
        raise NotFound(f"there is no attempt {query.attempt} of this job", hint=f"its newest is {job.attempt}")
    if query.ranks:
        attempts = [query.attempt] if query.attempt else range(1, job.attempt + 1)
        refuse_unknown(query.ranks, [hub.directory(job.job_dir, attempt, 0) for attempt in attempts])
    if query.follow:
        return _follow(hub, job, query, renderer, outlet or Outlet())
    return _read(hub, job, query, renderer)


async def _read(hub: LogHub, job: JobLogs, query: LogQuery, renderer: Renderer) -> AsyncGenerator[bytes, None]:
    async for piece in _Answer(hub, job, query, renderer).history():
        yield piece
    if end := renderer.end(job):
        yield end


async def _follow(
    hub: LogHub, job: JobLogs, query: LogQuery, renderer: Renderer, outlet: Outlet
) -> AsyncGenerator[bytes, None]:
    with hub.follow(job) as (feed, follower):
        answer = _Answer(hub, feed.job, query, renderer)
        async for piece in answer.history():
            yield piece
        async for piece in answer.live(feed, follower, outlet):
            yield piece


class _Answer:
    def __init__(self, hub: LogHub, job: JobLogs, query: LogQuery, renderer: Renderer) -> None:
        self._hub = hub
        self._job = job
        self._query = query
        self._renderer = renderer
        self._filter = line_filter(query)
        self._raw = isinstance(renderer, Frames) and not query.filtered
        self._readers: dict[Position, LogReader] = {}
        self._offsets: dict[Position, int] = {}
        self._told: dict[Position, int] = {}
        """Where the reader of this answer knows itself to be."""
        self._expected: dict[Position, int | None] = {}
        """seq that should come next; None: not known."""
        self._sent_at = monotonic()

    async def history(self) -> AsyncIterator[bytes]:
        """State and positions, then everything that is there now."""
        ends = await asyncio.to_thread(self._begin)
        # only tail and since begin elsewhere than the reader would by itself
        moved = {} if self._query.cursor else {where: at for where, at in self._offsets.items() if at}
        if state := self._renderer.state(self._job, moved):
            yield state
        async for parts in history(self._readers, dict(self._offsets), ends):
            if out := b"".join([piece for part in parts for piece in self._pieces(part)]):
                yield out
            await asyncio.sleep(0)  # see live()
        if out := b"".join(self._positions()):
            yield out
        self._sent_at = monotonic()

    async def live(self, feed: Feed, follower: Follower, outlet: Outlet) -> AsyncIterator[bytes]:
        """Lines and states as they come, to the end."""
        take = partial(self._take, feed, outlet)
        again = False
        while True:
            follower.news.clear()
            job, over = feed.job, feed.over
            out = self._news_of(job) if job is not self._job else []
            grown = [tail for tail in feed.tails.values() if self._offset(tail.position) < tail.end]
            if grown and again:
                await asyncio.sleep(0)  # a fast reader never makes the transport wait: let the others run
            moved = False
            for tail in grown:
                moved = await self._advance(tail, out) or moved
            if not moved and not over and job.state.final:
                yield b"".join([*out, *self._positions(), self._renderer.end(job)])
                return
            if not moved and not out:
                out = self._idle()
            if out:
                yield out[0] if len(out) == 1 else b"".join(out)
                self._sent_at = monotonic()
            if over:
                return
            again = moved and (job.state.final or self._is_behind(feed))
            if not again:
                follower.take = take
                await follower.news.wait()
                follower.take = leave
                await outlet.settle()

    # --- the beginning

    def _begin(self) -> dict[Position, int]:
        """Open what is there and find where to begin; how far each log reaches now. Blocking."""
        attempts = range(1, self._job.attempt + 1) if self._query.attempt is None else [self._query.attempt]
        for attempt in attempts:
            for worker in range(self._job.n_workers):
                directory = self._hub.directory(self._job.job_dir, attempt, worker)
                if directory.is_dir():
                    self._readers[attempt, worker] = LogReader(directory)
        for position, offset in find_starts(self._readers, self._query).items():
            self._set_out(position, offset)
        return {position: reader.end() for position, reader in self._readers.items()}

    def _set_out(self, position: Position, offset: int) -> None:
        self._offsets[position] = self._told[position] = offset
        before = self._readers[position].record_before(offset) if offset else None
        self._expected[position] = next_sequence(before) if before else None if offset else 0

    def _offset(self, position: Position) -> int:
        """Of a log that appeared meanwhile, too."""
        if position not in self._offsets:
            if self._query.attempt not in (None, position[0]):
                self._offsets[position] = maxsize  # never looked at
            else:
                self._readers[position] = LogReader(self._hub.directory(self._job.job_dir, *position))
                self._set_out(position, self._query.cursor.get(position, 0))
        return self._offsets[position]

    def _take(self, feed: Feed, outlet: Outlet) -> bool:
        """Write the new lines to the outlet while `live` waits; False: there is more to it, `live` has to go on."""
        if feed.job is not self._job or feed.over:
            return False
        now = monotonic()
        for tail in feed.tails.values():
            if self._offsets.get(tail.position, 0) < tail.end:
                frame = self._shared_frame(tail) if outlet.ready else None
                if not frame or not outlet.write(frame):
                    return False
                self._sent_at = now
        return now - self._sent_at < self._hub.silence_s

    def _is_behind(self, feed: Feed) -> bool:
        """Whether any log reaches farther than this answer has come, whole records or not."""
        return any(self._offset(tail.position) < tail.end for tail in feed.tails.values())

    # --- records

    async def _advance(self, tail: Tail, out: list[bytes]) -> bool:
        """The next records of one log, behind `out`. False: there is no whole record yet."""
        if frame := self._shared_frame(tail):
            out.append(frame)
            return True
        position, offset = tail.position, self._offsets[tail.position]
        block = tail.chunk_at(offset) or await read_block(self._readers[position], offset)
        if block:
            out += self._pieces(Part(position, block.end, block.data))
        return block is not None

    def _shared_frame(self, tail: Tail) -> bytes | None:
        """The next records as the frame that all get who stand here, and this answer stands behind it; None: they have
        to be looked at, or are no chunk."""
        position = tail.position
        chunk = tail.chunk_at(self._offsets.get(position, 0)) if self._raw else None
        if not chunk or chunk.first is None or chunk.first != self._expected.get(position):
            return None
        self._offsets[position] = self._told[position] = chunk.end
        self._expected[position] = chunk.next
        return chunk.frame

    def _pieces(self, part: Part) -> list[bytes]:
        """What the reader gets of `part`; afterwards this answer stands behind it."""
        position, end, data = part
        out = []
        if missing := missing_before(data, self._expected[position]):
            out.append(self._renderer.gap(position, missing))
        chosen = self._filter(data)
        if chosen or end - self._told[position] > SILENT_BYTES:
            self._told[position] = end
            out.append(self._renderer.records(position, end, chosen))
        self._offsets[position] = end
        self._expected[position] = next_sequence(data)
        return out

    def _positions(self) -> Iterator[bytes]:
        """Tell of the positions behind records that were not chosen."""
        for position, offset in self._offsets.items():
            if offset != maxsize and self._told[position] != offset:
                self._told[position] = offset
                yield self._renderer.records(position, offset, b"")

    # --- the rest

    def _news_of(self, job: JobLogs) -> list[bytes]:
        before, self._job = self._job, job
        if facts(before) == facts(job):
            return []
        state = self._renderer.state(job, {})
        return [state] if state else []

    def _idle(self) -> list[bytes]:
        """Woken, but there is no news."""
        if monotonic() - self._sent_at < self._hub.silence_s:
            return []
        return [piece for piece in (*self._positions(), self._renderer.ping()) if piece]
