"""Threads of the agent. They continue after errors, and post events to the main thread, which makes all decisions."""

import random
import threading
import time
from typing import Callable, Dict, NamedTuple, Optional, TypeVar

from client_lib.worker.directory import write_all
from client_lib.worker.server_connection import Unreachable

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 3.0

T = TypeVar("T")


class Replaced(Exception):
    """Another pod owns this worker: nothing may run here."""


class Instruction(NamedTuple):
    """Next step of the worker: wait, go, stop or exit."""

    do: str
    grace_s: Optional[float] = None
    stacks: Optional[str] = None
    """Mark of an order to send the stacks of the ranks, beside `do`."""
    session: Optional[str] = None
    """Mark of a session of the user to take up, beside `do`."""


class AgentEvent(NamedTuple):
    """Wakes the agent's main thread: one of these has changed, or none of them and a child has ended."""

    launcher: Optional[str] = None
    instruction: Optional[Instruction] = None
    replaced: bool = False
    """Another pod owns the worker."""
    stacks: bool = False
    """The server has ordered the stacks of the ranks."""
    quiet: Optional[Dict[str, float]] = None
    """The ranks in the launcher's event with that name."""


def warn(text: str) -> None:
    """Print a line for the log of the container."""
    try:
        write_all(2, ("client-lib: %s\n" % text).encode("utf-8", "backslashreplace"))
    except OSError:
        pass  # stderr is full or closed; a thread that warns must go on


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


def until_answered(call: Callable[[], T], check_stop: Callable[[], None]) -> T:
    """The value of `call`, which is repeated while it raises Unreachable. `check_stop` is called between the tries, and
    may raise."""
    backoff, warned = Backoff(), ""
    while True:
        try:
            return call()
        except Unreachable as error:
            if str(error) != warned:
                warned = str(error)
                warn("waits for the server: %s" % error)
        check_stop()
        backoff.sleep()


class AgentThread(threading.Thread):
    """A thread that runs `work` until it returns. An error is logged, and `work` is called again after a pause: an
    agent that lost a thread would stop reporting, and its job would wait for it.

    `again` False: the error is logged, and the thread ends.
    """

    def __init__(self, name: str, work: Callable[[], None], again: bool = True) -> None:
        super().__init__(name=name, daemon=True)
        self._work, self._again = work, again
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
                warn("an error in the agent's thread %s:\n%s" % (self.name, traceback.format_exc()))
                if not self._again:
                    return
            backoff.sleep()
