"""Threads of the agent that continue after errors, and the pauses between their tries."""

import random
import threading
import time
from typing import Callable

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 3.0


class Backoff:
    """Pauses between tries: 0.1, 0.2, 0.4 ... 3 s, each shortened at random by up to a fifth, so that the pods of a job
    do not call at the same moment."""

    def __init__(self) -> None:
        self._next_s = _FIRST_PAUSE_S

    def reset(self) -> None:
        self._next_s = _FIRST_PAUSE_S

    def sleep(self) -> None:
        time.sleep(self._next_s * random.uniform(0.8, 1.0))
        self._next_s = min(2 * self._next_s, _LONGEST_PAUSE_S)


class AgentThread(threading.Thread):
    """A thread that runs `work` until it returns. An error is logged, and `work` is called again after a pause: an
    agent that lost a thread would stop reporting, and its job would wait for it.

    `again` False: the error is logged, and the thread ends.
    """

    def __init__(self, name: str, work: Callable[[], None], warn: Callable[[str], None], again: bool = True) -> None:
        super().__init__(name=name, daemon=True)
        self._work, self._warn, self._again = work, warn, again
        self.fails = False
        """The last call of `work` has failed. `work` may set it to False."""

    def run(self) -> None:
        backoff = Backoff()
        while True:
            try:
                self._work()
                return
            except Exception:  # noqa: BLE001  # it is logged, and the thread goes on
                import traceback  # here: takes milliseconds, and no agent should need it

                self.fails = True
                self._warn("an error in the agent's thread %s:\n%s" % (self.name, traceback.format_exc()))
                if not self._again:
                    return
            backoff.sleep()
