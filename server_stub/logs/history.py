"""Reads the existing records of several workers' logs, ordered by time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from itertools import groupby

from client_lib.spec.log_stream import Position
from server_stub.logs.merge import Head, Part, merge
from server_stub.logs.segments import BLOCK, Block, LogReader


async def read_block(reader: LogReader, offset: int, size: int = BLOCK) -> Block | None:
    """Read a block, in a thread if it is not in the cache of the operating system."""
    try:
        return reader.block(offset, size, cached=True)
    except BlockingIOError:
        return await asyncio.to_thread(reader.block, offset, size)


async def history(
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
        block = await read_block(self._reader, self._offset, min(BLOCK, self._end - self._offset))
        if block:
            self._offset = block.end
        return block
