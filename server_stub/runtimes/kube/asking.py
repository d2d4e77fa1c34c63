"""Threads that wait for the API server, apart from those of the disk: while it is slow, or a thousand jobs are made at
once, what workers say is written down all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

THREADS = 16
P = ParamSpec("P")
T = TypeVar("T")

_threads = ThreadPoolExecutor(THREADS, thread_name_prefix="kubernetes")


async def asked(call: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """What `call`, which asks the API server, returns or raises."""
    return await asyncio.get_running_loop().run_in_executor(_threads, lambda: call(*args, **options))
