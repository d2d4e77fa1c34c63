"""Does long work in short slices, between the other work of the launcher's loop."""

import time
from typing import Callable, Iterator

from client_lib.worker.loop import Loop

_SLICE_S = 0.02
"""Seconds for which the work keeps the launcher from everything else."""


def in_slices(
    loop: Loop, work: Iterator[object], on_end: Callable[[], None], share: float = 1.0
) -> None:
    """Take the first slice of an iterator now and the others later, then call `on_end`. `share`:
    longest part of the time that the slices take."""
    pause_s = _SLICE_S / share - _SLICE_S

    def go_on() -> None:
        until = time.monotonic() + _SLICE_S
        for _ in work:
            if time.monotonic() > until:
                loop.call_later(pause_s, go_on)
                return
        on_end()

    go_on()
