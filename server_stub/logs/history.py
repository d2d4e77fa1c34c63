"""What is in the logs already: their records, of several workers in the order of time, as parts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from itertools import groupby

from client_lib.spec.log_stream import Position
from server_stub.logs.merge import Head, Part, merge
from server_stub.logs.segments import BLOCK, Block, LogReader


async def read_block(reader: LogReader, offset: int, size: int = BLOCK) -> Block | None:
    """From the cache of the operating system at once, else in a thread: no disk holds up the event loop."""
    try:
        return reader.block(offset, size, cached=True)
    except BlockingIOError:
        return await asyncio.to_thread(reader.block, offset, size)


async def history(
    readers: Mapping[Position, LogReader], starts: Mapping[Position, int], ends: Mapping[Position, int]
) -> AsyncIterator[list[Part]]:
    """Everything between `starts` and `ends`, attempt by attempt; in batches, so that others get their turn."""
    for _, attempt in groupby(sorted(readers), key=lambda position: position[0]):
        sources = {position: _Source(readers[position], starts[position], ends[position]) for position in attempt}
        heads: list[Head] = []
        while sources or heads:
            for position in list(sources):
                block = await sources[position].next() if _needs(position, heads) else None
                if block:
                    heads.append(Head(position, block))
                elif _needs(position, heads):
                    del sources[position]
            if heads:
                yield list(merge(heads))
                heads = [head for head in heads if not head.empty]


def _needs(position: Position, heads: list[Head]) -> bool:
    return all(head.position != position for head in heads)


class _Source:
    """The blocks of one worker's log up to an end."""

    def __init__(self, reader: LogReader, start: int, end: int) -> None:
        self._reader, self._offset, self._end = reader, start, end

    async def next(self) -> Block | None:
        if self._offset >= self._end:
            return None
        block = await read_block(self._reader, self._offset, min(BLOCK, self._end - self._offset))
        if block:
            self._offset = block.end
        return block
