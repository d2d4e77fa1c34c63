"""Makes the answer for one reader: state, existing lines, live lines, end. It keeps positions, and no lines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping
from contextlib import closing
from itertools import groupby
from pathlib import Path
from sys import maxsize
from time import monotonic

from client_lib.errors import NotFound
from client_lib.spec.paths import Position
from client_lib.worker.directory import Directory, read_json
from server_stub.files.owned import opener
from server_stub.logs.hub import Feed, LogHub, Tail
from server_stub.logs.merge import Head, Part, merge
from server_stub.logs.query import LoggedJob, LogQuery
from server_stub.logs.records import line_filter, missing_before, next_sequence
from server_stub.logs.render import Frames, Renderer, facts
from server_stub.logs.segments import BLOCK, Block, LogReader
from server_stub.logs.starts import find_starts

SILENT_BYTES = 2**20  # a reader gets its new position after so many bytes of lines that its filter left out


def stream(hub: LogHub, job: LoggedJob, query: LogQuery, renderer: Renderer) -> AsyncGenerator[bytes, None]:
    """The body of the answer. It ends without `@end` if the job is deleted or the server stops.

    Raises NotFound at the call, before the first piece: there is no such attempt, or no such rank.
    """
    logs(hub, job, query)
    if query.follow:
        return _follow(hub, job, query, renderer)
    return _read(hub, job, query, renderer)


def logs(hub: LogHub, job: LoggedJob, query: LogQuery) -> dict[Position, Path]:
    """The directories of the wanted logs. Raises NotFound: there is no such attempt, or no such rank."""
    if query.attempt is not None and query.attempt > job.attempt:
        raise NotFound(f"there is no attempt {query.attempt} of this job", hint=f"its newest is {job.attempt}")
    attempts = [query.attempt] if query.attempt else range(1, job.attempt + 1)
    if query.ranks:
        refuse_unknown(query.ranks, [hub.directory(job.job_dir, attempt, 0) for attempt in attempts])
    return {(a, w): hub.directory(job.job_dir, a, w) for a in attempts for w in range(job.n_workers)}


def refuse_unknown(asked: Iterable[int], logs: Iterable[Path]) -> None:
    """Raises NotFound: no attempt has one of the ranks `asked`, whose lines would be waited for without end. `logs`:
    the log directory of worker 0 of each attempt.

    The number of ranks may depend on the GPUs that an attempt gets: before it is planned every rank is accepted.
    """
    counts = [_ranks(log.parent) for log in logs]
    unknown = [rank for rank in sorted(asked) if rank >= max(counts)]
    if all(counts) and unknown:
        there_are = "its only rank is 0" if max(counts) == 1 else f"its ranks are 0 to {max(counts) - 1}"
        raise NotFound(f"this job has no rank {unknown[0]}", hint=there_are)


def _ranks(worker_dir: Path) -> int:
    """The number of ranks; 0: not planned yet."""
    plan = read_json(Directory(str(worker_dir)).plan, opener(worker_dir)) or {}
    return int(plan.get("n_workers", 0) * plan.get("processes_per_worker", 0))


async def _read(hub: LogHub, job: LoggedJob, query: LogQuery, renderer: Renderer) -> AsyncGenerator[bytes, None]:
    with closing(_Answer(hub, job, query, renderer)) as answer:
        async for piece in answer.history():
            yield piece
    if end := renderer.end(job):
        yield end


async def _follow(hub: LogHub, job: LoggedJob, query: LogQuery, renderer: Renderer) -> AsyncGenerator[bytes, None]:
    with hub.follow(job) as (feed, news), closing(_Answer(hub, feed.job, query, renderer)) as answer:
        async for piece in answer.history():
            yield piece
        async for piece in answer.live(feed, news):
            yield piece


class _Answer:
    def __init__(self, hub: LogHub, job: LoggedJob, query: LogQuery, renderer: Renderer) -> None:
        self._hub = hub
        self._job = job
        self._query = query
        self._renderer = renderer
        self._filter = line_filter(query)
        self._raw = isinstance(renderer, Frames) and not query.filtered
        self._readers: dict[Position, LogReader] = {}
        self._offsets: dict[Position, int] = {}
        self._sent_up_to: dict[Position, int] = {}
        """The position of each log that the reader has."""
        self._expected: dict[Position, int | None] = {}
        """The seq that should come next; None: not known."""
        self._sent_at = monotonic()
        self._closed = False

    def close(self) -> None:
        """Close the files. The exception of a reader that disconnected keeps this object until a garbage collection."""
        self._closed = True
        for reader in list(self._readers.values()):
            reader.close()

    async def history(self) -> AsyncIterator[bytes]:
        """State and positions, then all existing lines."""
        ends = await asyncio.to_thread(self._begin)
        # without tail and since a reader begins at 0 by itself
        moved = {} if self._query.cursor else {where: at for where, at in self._offsets.items() if at}
        if state := self._renderer.state(self._job, moved):
            yield state
        async for parts in _records(self._readers, dict(self._offsets), ends):
            if out := b"".join([piece for part in parts for piece in self._pieces(part)]):
                yield out
            await asyncio.sleep(0)  # see live()
        if out := b"".join(self._positions()):
            yield out
        self._sent_at = monotonic()

    async def live(self, feed: Feed, news: asyncio.Event) -> AsyncIterator[bytes]:
        """New lines and states until the end."""
        behind = False
        while True:
            news.clear()
            job, over = feed.job, feed.over
            out = self._news_of(job) if job is not self._job else []
            grown = [tail for tail in feed.tails.values() if self._offset(tail.position) < tail.end]
            if grown and behind:
                await asyncio.sleep(0)  # sending to a fast reader never waits: let others run
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
            behind = moved and (job.state.final or self._is_behind(feed))
            if not behind:
                await news.wait()

    # --- the beginning

    def _begin(self) -> dict[Position, int]:
        """Open the existing logs and find where to begin; returns the end of each. It blocks."""
        attempts = range(1, self._job.attempt + 1) if self._query.attempt is None else [self._query.attempt]
        for attempt in attempts:
            for worker in range(self._job.n_workers):
                directory = self._hub.directory(self._job.job_dir, attempt, worker)
                if directory.is_dir():
                    self._open((attempt, worker), directory)
        for position, offset in find_starts(self._readers, self._query).items():
            self._start_at(position, offset)
        ends, before = {position: reader.end() for position, reader in self._readers.items()}, self._query.before
        return ends if before is None else {where: min(end, before.get(where, 0)) for where, end in ends.items()}

    def _open(self, position: Position, directory: Path) -> None:
        reader = self._readers[position] = LogReader(directory)
        if self._closed:  # `close` may run while a thread starts
            reader.close()

    def _start_at(self, position: Position, offset: int) -> None:
        self._offsets[position] = self._sent_up_to[position] = offset
        before = self._readers[position].record_before(offset) if offset else None
        self._expected[position] = next_sequence(before) if before else None if offset else 0

    def _offset(self, position: Position) -> int:
        """The offset in a log, which is opened here if it is new."""
        if position not in self._offsets:
            if self._query.attempt not in (None, position[0]):
                self._offsets[position] = maxsize  # a log of another attempt is never read
            else:
                self._open(position, self._hub.directory(self._job.job_dir, *position))
                self._start_at(position, self._query.cursor.get(position, 0))
        return self._offsets[position]

    def _is_behind(self, feed: Feed) -> bool:
        """True if some log has bytes that this answer has not read, whole records or not."""
        return any(self._offset(tail.position) < tail.end for tail in feed.tails.values())

    # --- records

    async def _advance(self, tail: Tail, out: list[bytes]) -> bool:
        """Append the next records of one log to `out`; returns False if there is no whole record yet."""
        if frame := self._shared_frame(tail):
            out.append(frame)
            return True
        position, offset = tail.position, self._offsets[tail.position]
        block = tail.chunk_at(offset) or await _read_block(self._readers[position], offset)
        if block:
            out += self._pieces(Part(position, block.end, block.data))
        return block is not None

    def _shared_frame(self, tail: Tail) -> bytes | None:
        """The next records as the frame that all followers at this offset share; moves the offset to its end. None:
        there is no such frame, or a filter or a gap needs the records themselves."""
        position = tail.position
        chunk = tail.chunk_at(self._offsets.get(position, 0)) if self._raw else None
        if not chunk or chunk.first is None or chunk.first != self._expected.get(position):
            return None
        self._offsets[position] = self._sent_up_to[position] = chunk.end
        self._expected[position] = chunk.next
        return chunk.frame

    def _pieces(self, part: Part) -> list[bytes]:
        """The bytes that the reader gets for `part`; moves the offset to its end."""
        position, end, data = part
        out = []
        if missing := missing_before(data, self._expected[position]):
            out.append(self._renderer.gap(position, missing))
        chosen = self._filter(data)
        if chosen or end - self._sent_up_to[position] > SILENT_BYTES:
            self._sent_up_to[position] = end
            out.append(self._renderer.records(position, end, chosen))
        self._offsets[position] = end
        self._expected[position] = next_sequence(data)
        return out

    def _positions(self) -> Iterator[bytes]:
        """Positions after records that the filter left out."""
        for position, offset in self._offsets.items():
            if offset != maxsize and self._sent_up_to[position] != offset:
                self._sent_up_to[position] = offset
                yield self._renderer.records(position, offset, b"")

    # --- the rest

    def _news_of(self, job: LoggedJob) -> list[bytes]:
        before, self._job = self._job, job
        if facts(before) == facts(job):
            return []
        state = self._renderer.state(job, {})
        return [state] if state else []

    def _idle(self) -> list[bytes]:
        """A heartbeat, if the reader got nothing for some time."""
        if monotonic() - self._sent_at < self._hub.silence_s:
            return []
        return [piece for piece in (*self._positions(), self._renderer.ping()) if piece]


# --- existing records of several logs, ordered by time


async def _records(
    readers: Mapping[Position, LogReader], starts: Mapping[Position, int], ends: Mapping[Position, int]
) -> AsyncIterator[list[Part]]:
    """All records between `starts` and `ends`, one attempt after the other, in batches."""
    for _, attempt in groupby(sorted(readers), key=lambda position: position[0]):
        sources = {position: _BlockReader(readers[position], starts[position], ends[position]) for position in attempt}
        heads: dict[Position, Head] = {}
        while len(sources) > 1 or heads:
            for position in sources.keys() - heads.keys():
                block = await sources[position].next()
                if block:
                    heads[position] = Head(position, block)
                else:
                    del sources[position]
            if heads:
                yield list(merge(heads.values()))
                heads = {position: head for position, head in heads.items() if not head.empty}
        for position, source in sources.items():  # the last one needs no merging
            while block := await source.next():
                yield [Part(position, block.end, block.data)]


class _BlockReader:
    """The blocks of one worker's log up to an end."""

    def __init__(self, reader: LogReader, start: int, end: int) -> None:
        self._reader, self._offset, self._end = reader, start, end

    async def next(self) -> Block | None:
        if self._offset >= self._end:
            return None
        block = await _read_block(self._reader, self._offset, min(BLOCK, self._end - self._offset))
        if block:
            self._offset = block.end
        return block


async def _read_block(reader: LogReader, offset: int, size: int = BLOCK) -> Block | None:
    """Read a block, in a thread if it is not in the cache of the operating system."""
    try:
        return reader.block(offset, size, cached=True)
    except BlockingIOError:
        return await asyncio.to_thread(reader.block, offset, size)
