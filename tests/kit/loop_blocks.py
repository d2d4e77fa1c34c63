"""The longest block of an event loop: the time in which it runs one callback, and so answers nobody
else. It is measured in CPU time of the loop's thread, so that a busy machine does not matter."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

BLOCK_S = 0.2
"""Longest block that a request may cause."""


@dataclass
class Blocks:
    """The longest block so far."""

    longest_s: float = 0.0
    of: str = ""
    """The callback."""


@contextmanager
def blocks_of_loops() -> Iterator[Blocks]:
    """Measure all event loops of asyncio in this process while the body runs."""
    found = Blocks()
    run = asyncio.Handle._run

    def measured(handle: asyncio.Handle) -> None:
        began = time.thread_time()
        run(handle)
        took = time.thread_time() - began
        if took > found.longest_s:
            found.longest_s = took
            found.of = repr(handle)

    with pytest.MonkeyPatch.context() as patch:
        # asyncio itself measures its callbacks in time of the clock alone, and only in debug mode
        patch.setattr(asyncio.Handle, "_run", measured)
        yield found
