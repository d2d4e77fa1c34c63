"""Ends work that nobody waits for any more."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

T = TypeVar("T")


async def unless_stopping(work: Coroutine[Any, Any, T], stopping: asyncio.Event) -> T | None:
    """The result of the work; None once the server stops, so that a stop waits for no long poll."""
    task = await _ended_or_cancelled(work, stopping.wait())
    return None if task.cancelled() else task.result()


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of the work, for a request without a body.

    Raises ClientDisconnect: the client went away, and the work was cancelled.
    """
    task = await _ended_or_cancelled(work, _disconnect(request))
    if task.cancelled():
        raise ClientDisconnect
    return task.result()


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _ended_or_cancelled(
    work: Coroutine[Any, Any, T], event: Coroutine[Any, Any, Any]
) -> asyncio.Task[T]:
    """The work when it has ended; it is cancelled at the event, or when the caller is."""
    task = asyncio.create_task(work)
    happened = asyncio.create_task(event)
    try:
        await asyncio.wait({task, happened}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        happened.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
    return task
