"""Sessions of users in workers: one end of the bytes between both, and the
orders for a remote worker.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Mapping
from typing import Any

from client_lib.errors import Conflict, NotFound, Unavailable
from client_lib.launcher_protocol.frames import BLOCK

LIMIT_S = 10.0
"""Time in which a worker must take up a session."""
ROOM_S = 10.0
"""Longest time that a request waits to pass bytes on; shorter than the time after
which the callers give up.
"""


def worker_of(request: Mapping[str, Any], n_workers: int, per_worker: int) -> int:
    """The worker of a SessionRequest. Raises NotFound: there is no such rank or worker."""
    what, asked = (
        ("worker", request["worker"] or 0) if request["rank"] is None else ("rank", request["rank"])
    )
    there_are = n_workers if what == "worker" else n_workers * per_worker
    if asked >= there_are:
        raise NotFound(
            f"this job has no {what} {asked}", hint=f"its {what}s are 0 to {there_are - 1}"
        )
    return int(asked if what == "worker" else asked // per_worker)


class SessionEnd:
    """This server's end of a connection whose bytes it passes on unread. Event loop only."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.is_read = asyncio.Event()
        self._taken = 0
        self._order = asyncio.Lock()

    @classmethod
    async def of(cls, connection: socket.socket, before: bytes = b"") -> SessionEnd:
        """`before`: bytes that are read before the bytes of the other end."""
        reader, writer = await asyncio.open_unix_connection(sock=connection)
        if before:
            reader.feed_data(before)
        return cls(reader, writer)

    async def take_all(self, offset: int, pieces: AsyncIterable[bytes]) -> None:
        """Pass the bytes of a request on as they arrive, so that no more than a piece is held while
        the other end reads nothing. A request without bytes is the end. Raises as `take`, for the
        first bytes that were not taken."""
        begin = offset
        async for piece in pieces:
            if piece:
                await self.take(offset, piece)
                offset += len(piece)
        if offset == begin:
            await self.take(offset, b"")

    async def take(self, offset: int, data: bytes) -> None:
        """Pass bytes on. Bytes that a repeated request brings again are dropped. No bytes: the end.
        Raises Conflict: bytes are missing, or the other end is closed; Unavailable: the other end
        has read nothing for ROOM_S, and no byte was taken."""
        try:
            await asyncio.wait_for(self._take(offset, data), ROOM_S)
        except asyncio.TimeoutError:
            raise Unavailable("the other end of the session reads nothing now") from None
        except (
            ConnectionError,
            RuntimeError,
        ) as error:  # the latter for a transport that is closing
            raise Conflict("the session has ended") from error

    async def _take(self, offset: int, data: bytes) -> None:
        async with self._order:
            if offset > self._taken:
                raise Conflict(f"the session has {self._taken} bytes, these are of offset {offset}")
            if not data:
                self._writer.close()
                return
            await self._writer.drain()
            new = data[self._taken - offset :]
            self._taken += len(new)
            self._writer.write(new)

    async def content(self) -> AsyncGenerator[bytes, None]:
        """The bytes of the other end as they arrive. This end is closed after the last one."""
        self.is_read.set()
        try:
            while data := await self._reader.read(BLOCK):
                yield data
        except ConnectionError:  # as at the end
            pass
        finally:
            self._writer.close()

    def close(self) -> None:
        """End the connection at once: bytes that the other end has not read are lost."""
        self._writer.transport.abort()


class SessionOrders:
    """The sessions of one remote worker, each with a mark. They end with this server
    process. Event loop only.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        """`wake` sends an order."""
        self._wake = wake
        self.supported = False
        """The worker's version has sessions."""
        self._unsent: list[str] = []
        self._ends: dict[str, SessionEnd] = {}

    async def begin(self, request: Mapping[str, object]) -> socket.socket:
        """Order a session and return the user's end. Raises Conflict: no answer in time."""
        mark = secrets.token_hex(8)
        users, workers = socket.socketpair()
        end = self._ends[mark] = await SessionEnd.of(workers, json.dumps(request).encode() + b"\n")
        self._unsent.append(mark)
        self._wake()
        try:
            await asyncio.wait_for(end.is_read.wait(), LIMIT_S)
        except asyncio.TimeoutError:
            raise Conflict(f"it did not answer within {LIMIT_S:g} s") from None
        finally:
            if not end.is_read.is_set():
                users.close()
                self._ends.pop(mark).close()
        return users

    def next(self) -> str | None:
        """The mark of an order that was not sent to the worker; each is sent once."""
        return self._unsent.pop(0) if self._unsent else None

    async def to_worker(self, mark: str) -> AsyncGenerator[bytes, None]:
        """The request as a line of JSON, then the bytes of the user. Afterwards
        the session is forgotten.
        """
        try:
            async for data in self.end(mark).content():
                yield data
        finally:
            self._ends.pop(mark, None)

    def end(self, mark: str) -> SessionEnd:
        """The worker's end. Raises NotFound: the session is over."""
        if mark not in self._ends:
            raise NotFound("there is no such session, or it has ended")
        return self._ends[mark]
