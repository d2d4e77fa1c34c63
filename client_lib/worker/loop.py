"""The launcher's event loop: readable descriptors, timers, signals; one thread.

Importing asyncio would take longer than the launcher's whole start. Signals are handled before
pipes are read, so that the ends of ranks are seen in their order.
"""

import heapq
import itertools
import os
import selectors
import signal
import time
from typing import Callable, Dict, List, Tuple

_WAIT_MAX_S = 3600.0  # the system refuses to wait for more than 24 days at once
Callback = Callable[[], None]


def reset_signals() -> None:
    """In a forked process: its signals must not wake the launcher, and have
    their usual effect again.
    """
    signal.set_wakeup_fd(-1)
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(signum, signal.SIG_DFL)


class Timer:
    """A call that will be made once, at `due` (monotonic seconds), unless cancelled."""

    def __init__(self, due: float, callback: Callback) -> None:
        self.due = due
        self.callback = callback

    def cancel(self) -> None:
        self.callback = lambda: None


class Loop:
    """Runs callbacks until `stop`, after which no timer is called, and `after_round`
    after each round of callbacks.
    """

    def __init__(self, after_round: Callable[[], object]) -> None:
        self._after_round = after_round
        self._selector = selectors.DefaultSelector()
        self._timers: List[Tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._signals: Dict[int, Callback] = {}
        self._running = False
        self._wakeup, wakeup_write = os.pipe()
        for fd in (self._wakeup, wakeup_write):
            os.set_blocking(fd, False)
        self._selector.register(self._wakeup, selectors.EVENT_READ, self._take_signals)
        signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)

    def watch(self, fd: int, callback: Callback) -> None:
        """Call back whenever `fd` is readable or at its end; may be repeated."""
        if fd not in self._selector.get_map():
            self._selector.register(fd, selectors.EVENT_READ, callback)

    def forget(self, fd: int) -> None:
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    def on_signal(self, signum: int, callback: Callback) -> None:
        """Install a handler: for process 1 of a pod the kernel drops a signal that has none."""
        self._signals[signum] = callback
        signal.signal(signum, lambda *_: None)

    def call_later(self, delay_s: float, callback: Callback) -> Timer:
        timer = Timer(time.monotonic() + delay_s, callback)
        heapq.heappush(self._timers, (timer.due, next(self._order), timer))
        return timer

    def stop(self) -> None:
        self._running = False

    def run(self) -> None:
        self._running = True
        while self._running:
            wait_s = (
                min(max(0.0, self._timers[0][0] - time.monotonic()), _WAIT_MAX_S)
                if self._timers
                else None
            )
            ready = [key for key, _ in self._selector.select(wait_s)]
            for key in sorted(ready, key=lambda key: key.fd != self._wakeup):
                # an earlier callback may have closed this descriptor, and a new one may have got
                # its number
                if self._selector.get_map().get(key.fd) is key:
                    key.data()
            now = time.monotonic()
            while self._running and self._timers and self._timers[0][0] <= now:
                heapq.heappop(self._timers)[2].callback()
            self._after_round()

    def _take_signals(self) -> None:
        for signum in sorted(set(os.read(self._wakeup, 65536))):
            if signum in self._signals:
                self._signals[signum]()
