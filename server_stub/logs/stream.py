"""Makes the answer for one reader: state, existing lines, live lines, end. It
keeps positions, and no lines.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from time import monotonic

from client_lib.durable import read_json
from client_lib.errors import NotFound
from client_lib.launcher_protocol.directory import Directory
from client_lib.spec.paths import Position
from server_stub.files.job_dirs import log_dir, opener
from server_stub.logs.hub import Feed, LogHub, Tail
from server_stub.logs.query import LogQuery
from server_stub.logs.records import (
    Block,
    LoggedJob,
    line_filter,
    merge,
    missing_before,
    next_sequence,
)
from server_stub.logs.render import Renderer, facts
from server_stub.logs.segments import BLOCK, LogReader, find_starts

# a reader gets its new position after so many bytes of lines that its filter left out
SILENT_BYTES = 2**20


def stream(
    hub: LogHub, job: LoggedJob, query: LogQuery, renderer: Renderer
) -> AsyncGenerator[bytes, None]:
    """The body of the answer. It ends without `@end` if the job is deleted or the server stops.
    Raises NotFound at the call, before the first piece: there is no such attempt, or no such rank.
    """
    return _stream(hub, job, logs(job, query), query, renderer)


async def _stream(
    hub: LogHub,
    job: LoggedJob,
    existing: Mapping[Position, Path],
    query: LogQuery,
    renderer: Renderer,
) -> AsyncGenerator[bytes, None]:
    following = hub.follow(job) if query.follow else nullcontext(None)
    with (
        following as followed,
        closing(_Answer(followed[0].job if followed else job, query, renderer)) as answer,
    ):
        async for piece in answer.history(existing):
            yield piece
        if followed:
            async for piece in answer.live(*followed, hub.silence_s):
                yield piece
    if not followed and (end := renderer.end(job)):
        yield end


def logs(job: LoggedJob, query: LogQuery) -> dict[Position, Path]:
    """The directories of the wanted logs, there or not. Raises NotFound: there is no such
    attempt, or no such rank.
    """
    if query.attempt is not None and query.attempt > job.attempt:
        raise NotFound(
            f"there is no attempt {query.attempt} of this job", hint=f"its newest is {job.attempt}"
        )
    attempts = [query.attempt] if query.attempt else range(1, job.attempt + 1)
    if query.ranks:
        refuse_unknown(query.ranks, [log_dir(job.job_dir, attempt, 0) for attempt in attempts])
    return {(a, w): log_dir(job.job_dir, a, w) for a in attempts for w in range(job.n_workers)}


def refuse_unknown(asked: Iterable[int], logs: Iterable[Path]) -> None:
    """Raises NotFound: no attempt has one of the ranks `asked`, whose lines would be waited for
    without end. `logs`: the log directory of worker 0 of each attempt. The number of ranks may
    depend on the GPUs that an attempt gets: before it is planned every rank is accepted."""
    counts = [_ranks(log.parent) for log in logs]
    unknown = [rank for rank in sorted(asked) if rank >= max(counts)]
    if all(counts) and unknown:
        there_are = (
            "its only rank is 0" if max(counts) == 1 else f"its ranks are 0 to {max(counts) - 1}"
        )
        raise NotFound(f"this job has no rank {unknown[0]}", hint=there_are)


def _ranks(worker_dir: Path) -> int:
    """The number of ranks; 0: not planned yet."""
    plan = read_json(Directory(str(worker_dir)).plan, opener(worker_dir)) or {}
    return int(plan.get("n_workers", 0) * plan.get("processes_per_worker", 0))


@dataclass
class _ReadLog:
    """The place of one reader in one worker's log."""

    reader: LogReader
    offset: int = 0
    sent_up_to: int = 0  # the offset that was sent to the reader last
    expected: int | None = 0  # the seq that should come next; None: not known

    def start_at(self, offset: int) -> None:
        self.offset = self.sent_up_to = offset
        before = self.reader.record_before(offset) if offset else None
        self.expected = next_sequence(before) if before else None if offset else 0


class _Answer:
    def __init__(self, job: LoggedJob, query: LogQuery, renderer: Renderer) -> None:
        self._job = job
        self._query = query
        self._renderer = renderer
        self._filter = line_filter(query)
        self._logs: dict[Position, _ReadLog] = {}
        self._sent_at = monotonic()
        self._closed = False

    def close(self) -> None:
        """Close the files. The exception of a reader that disconnected keeps this object
        until a garbage collection.
        """
        self._closed = True
        for log in list(self._logs.values()):
            log.reader.close()

    async def history(self, existing: Mapping[Position, Path]) -> AsyncIterator[bytes]:
        """State and positions, then all existing lines."""
        ends = await asyncio.to_thread(self._begin, existing)
        # without tail and since a reader begins at 0 by itself
        moved = (
            {}
            if self._query.cursor
            else {where: log.offset for where, log in self._logs.items() if log.offset}
        )
        if state := self._renderer.state(self._job, moved):
            yield state
        async for parts in _records(self._logs, ends):
            if out := b"".join([piece for part in parts for piece in self._pieces(*part)]):
                yield out
            await asyncio.sleep(0)  # see live()
        if out := b"".join(self._positions()):
            yield out
        self._sent_at = monotonic()

    async def live(self, feed: Feed, news: asyncio.Event, silence_s: float) -> AsyncIterator[bytes]:
        """New lines and states until the end. A reader that got nothing for
        `silence_s` gets a heartbeat.
        """
        behind = False
        while True:
            news.clear()
            job = feed.job
            over = feed.over
            before = self._job
            self._job = job
            state = b"" if facts(before) == facts(job) else self._renderer.state(job, {})
            out = [state] if state else []
            grown = self._grown(feed)
            if grown and behind:
                await asyncio.sleep(0)  # sending to a fast reader never waits: let others run
            moved = False
            for tail in grown:
                log = self._logs[tail.position]
                block = tail.newest_at(log.offset) or await _read_block(log.reader, log.offset)
                if block:  # else there is no whole record yet
                    moved = True
                    out += self._pieces(tail.position, block)
            if not moved and not over and job.state.final:
                yield b"".join([*out, *self._positions(), self._renderer.end(job)])
                return
            if not out and monotonic() - self._sent_at >= silence_s:
                out = [piece for piece in (*self._positions(), self._renderer.ping()) if piece]
            if out:
                yield out[0] if len(out) == 1 else b"".join(out)
                self._sent_at = monotonic()
            if over:
                return
            behind = moved and (job.state.final or bool(self._grown(feed)))
            if not behind:
                await news.wait()

    def _begin(self, existing: Mapping[Position, Path]) -> dict[Position, int]:
        """Open the existing logs and find where to begin; returns the end of each. It blocks."""
        for position, directory in existing.items():
            if directory.is_dir():
                self._open(position, directory)
        readers = {position: log.reader for position, log in self._logs.items()}
        for position, offset in find_starts(readers, self._query).items():
            self._logs[position].start_at(offset)
        ends = {position: reader.end() for position, reader in readers.items()}
        before = self._query.before
        return (
            ends
            if before is None
            else {where: min(end, before.get(where, 0)) for where, end in ends.items()}
        )

    def _open(self, position: Position, directory: Path) -> _ReadLog:
        log = self._logs[position] = _ReadLog(LogReader(directory))
        if self._closed:  # `close` may run while a thread starts
            log.reader.close()
        return log

    def _grown(self, feed: Feed) -> list[Tail]:
        """The wanted logs with bytes that this answer has not read, whole records or not. Logs that
        are new are opened.
        """
        wanted = [
            tail for tail in feed.tails.values() if self._query.attempt in (None, tail.position[0])
        ]
        for tail in wanted:
            if tail.position not in self._logs:
                log = self._open(tail.position, log_dir(self._job.job_dir, *tail.position))
                log.start_at(self._query.cursor.get(tail.position, 0))
        return [tail for tail in wanted if self._logs[tail.position].offset < tail.end]

    def _pieces(self, position: Position, block: Block) -> list[bytes]:
        """The bytes that the reader gets for a block; moves the offset to its end."""
        log = self._logs[position]
        out = []
        data = block.data
        end = block.end
        if missing := missing_before(data, log.expected):
            out.append(self._renderer.gap(position, missing))
        chosen = self._filter(data)
        if chosen or end - log.sent_up_to > SILENT_BYTES:
            log.sent_up_to = end
            out.append(self._renderer.records(position, end, chosen))
        log.offset = end
        log.expected = next_sequence(data)
        return out

    def _positions(self) -> Iterator[bytes]:
        """Positions after records that the filter left out."""
        for position, log in self._logs.items():
            if log.sent_up_to != log.offset:
                log.sent_up_to = log.offset
                yield self._renderer.records(position, log.offset, b"")


async def _records(
    logs: Mapping[Position, _ReadLog], ends: Mapping[Position, int]
) -> AsyncIterator[list[tuple[Position, Block]]]:
    """All records up to `ends`, ordered by time, one attempt after the other, in batches."""
    for _, attempt in groupby(sorted(logs), key=lambda position: position[0]):
        offsets = {position: logs[position].offset for position in attempt}
        blocks: dict[Position, Block] = {}
        while offsets:
            for position in offsets.keys() - blocks.keys():
                offset = offsets.pop(position)
                end = ends[position]
                if offset >= end:
                    continue
                if block := await _read_block(
                    logs[position].reader, offset, min(BLOCK, end - offset)
                ):
                    blocks[position], offsets[position] = block, block.end
            yield list(merge(blocks))


async def _read_block(reader: LogReader, offset: int, size: int = BLOCK) -> Block | None:
    """Read a block, in a thread if it is not in the cache of the operating system."""
    try:
        return reader.block(offset, size, cached=True)
    except BlockingIOError:
        return await asyncio.to_thread(reader.block, offset, size)
