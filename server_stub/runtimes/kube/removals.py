"""Attempts that have ended and are still on the cluster: a few at a time are removed.

The garbage collector of a cluster has 40 requests a second for everybody. It forgets which owners are gone when there
are many at once, and asks for them again and again; and a gang that is deleted while it runs would wait behind all
that have ended.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from server_stub.runtimes.kube.names import AttemptKey

AT_ONCE = 4


class Removals:
    """Of one cluster."""

    def __init__(self) -> None:
        self._ended: set[AttemptKey] = set()
        self._turns = asyncio.Semaphore(AT_ONCE)

    def __contains__(self, key: AttemptKey) -> bool:
        """It has ended, and what is left of it goes by itself."""
        return key in self._ended

    @contextlib.contextmanager
    def ended(self, key: AttemptKey) -> Iterator[None]:
        """Until nothing is left of it."""
        self._ended.add(key)
        try:
            yield
        finally:
            self._ended.discard(key)

    def turn(self) -> asyncio.Semaphore:
        """`async with` it to remove one, in the order of asking."""
        return self._turns
