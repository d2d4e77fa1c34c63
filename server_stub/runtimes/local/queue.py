"""The attempts that wait, kept in the order in which they go: a queue of thousands costs a submit next to nothing."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from server_stub.runtimes import Attempt
from server_stub.runtimes.local.scheduling import Waiting


@dataclass
class Queued:
    attempt: Attempt | None
    """None: it was let go of."""
    waiting: Waiting
    told: str = ""
    """What it waits for, as it was last told; empty: it wasn't yet."""
    again: Callable[[], Attempt] | None = None

    def let_go(self) -> None:
        """It waits. What was submitted, a whole environment mostly, is on disk and need not wait in memory."""
        if self.attempt and self.attempt.again:
            self.again = self.attempt.again
            self.attempt = None

    def take(self) -> Attempt:
        """Its turn has come. Raises ServerError: what is on disk can't be read."""
        attempt = self.attempt or (self.again and self.again())
        assert attempt
        return attempt


def _place(queued: Queued) -> tuple[object, ...]:
    return queued.waiting.place


class Queue:
    """By key, and in order of `Waiting.place`."""

    def __init__(self) -> None:
        self._by_key: dict[str, Queued] = {}
        self._in_order: list[Queued] = []
        self.wanting_gpus = 0
        """How many of them need GPUs."""

    def __contains__(self, key: str) -> bool:
        return key in self._by_key

    def __getitem__(self, key: str) -> Queued:
        return self._by_key[key]

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[Waiting]:
        return (queued.waiting for queued in self._in_order)

    def add(self, queued: Queued) -> bool:
        """True: it goes behind all others."""
        self._by_key[queued.waiting.key] = queued
        self.wanting_gpus += queued.waiting.needs.wants_gpus
        if not self._in_order or _place(self._in_order[-1]) < _place(queued):
            self._in_order.append(queued)
            return True
        insort(self._in_order, queued, key=_place)
        return False

    def pop(self, key: str) -> Queued | None:
        queued = self._by_key.pop(key, None)
        if queued is not None:
            del self._in_order[bisect_left(self._in_order, _place(queued), key=_place)]
            self.wanting_gpus -= queued.waiting.needs.wants_gpus
        return queued
