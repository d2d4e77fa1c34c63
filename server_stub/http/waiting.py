"""Ends work that nobody waits for any more."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

T = TypeVar("T")


async def unless_stopping(work: Coroutine[Any, Any, T], stopping: asyncio.Event) -> T | None:
    """Return the result of the work. When the server begins to stop, cancel the work and return
    None, so that the stop need not wait for a long poll."""
    task = await _ended_or_cancelled(work, asyncio.create_task(stopping.wait()))
    return None if task.cancelled() else task.result()


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of the work, for a request without a body.

    Raises ClientDisconnect: the client went away, and the work was cancelled. Raises the error of
    `server_stub.http.limits` for a body that is sent all the same and is not within its bounds.
    """
    left = asyncio.create_task(_disconnect(request))
    task = await _ended_or_cancelled(work, left)
    if task.cancelled():
        left.result()
        raise ClientDisconnect
    return task.result()


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _ended_or_cancelled(
    work: Coroutine[Any, Any, T], happened: asyncio.Task[Any]
) -> asyncio.Task[T]:
    """Run the work until it has ended, the other task has ended or the caller is cancelled; in the
    last two cases the work is cancelled. Returns the ended work."""
    task = asyncio.create_task(work)
    try:
        await asyncio.wait({task, happened}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        happened.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
        await asyncio.wait({happened})
        if not happened.cancelled():
            happened.exception()  # asyncio logs an error that nobody has asked for
    return task
