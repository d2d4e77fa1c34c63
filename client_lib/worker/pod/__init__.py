"""The agent: process 1 of a pod. It controls the launcher there, for a server on another machine.

It claims the worker, fetches the code, starts the launcher as its child and reports the launcher's
state to the server. It sends the log by offset, keeps it in a spool while the server is
unreachable, and exits when everything is delivered. Started as `python3 worker.pyz pod`. Every
decision is the server's (server_stub.worker_gateway).

    agent               from the claim to the exit code, and the launcher; only its main thread
                        decides
    settings            files and variables that the pod was started with, and the plan made of them
    server_channel      states, instructions, report and results, over HTTP
    peer_channel        the same between the pods alone, where no server is reachable (a port of
                        worker 0)
    log_carriers        the log, on its way to the server and to stdout
"""

import random
import threading
import time
from contextlib import suppress
from typing import Callable, NamedTuple, Optional, Union

from client_lib.durable import write_all
from client_lib.launcher_protocol.control import Message

LEAVE = "leave"
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 3.0


class Instruction(NamedTuple):
    """Next step of the worker: wait, go, stop or exit. The main thread also gets `stacks`, an order
    to send the stacks of the ranks, and LEAVE: another pod owns the worker."""

    do: str
    grace_s: Optional[float] = None
    interrupt: bool = False
    """A stop sends SIGINT in place of SIGTERM."""
    stacks: Optional[str] = None
    """Mark of an order to send the stacks of the ranks, beside `do`."""
    session: Optional[str] = None
    """Mark of a session of the user to take up, beside `do`."""


AgentEvent = Union[Instruction, Message, None]
"""Wakes the agent's main thread: an instruction, or an event of the launcher
(launcher_protocol.control); None: a child has ended.
"""


def warn(text: str) -> None:
    """Print a line for the log of the container."""
    with suppress(OSError):  # stderr is full or closed; a thread that warns must go on
        write_all(2, ("client-lib: %s\n" % text).encode("utf-8", "backslashreplace"))


class Backoff:
    """Pauses between tries: 0.1, 0.2 ... 3 s, each shortened at random by up to a
    fifth, so that pods spread out.
    """

    def __init__(self) -> None:
        self._next_s = _FIRST_PAUSE_S

    def reset(self) -> None:
        self._next_s = _FIRST_PAUSE_S

    def sleep(self) -> None:
        time.sleep(self._next_s * random.uniform(0.8, 1.0))
        self._next_s = min(2 * self._next_s, _LONGEST_PAUSE_S)


class AgentThread(threading.Thread):
    """A thread that runs `work` until it returns. An error is logged, and `work` is called again
    after a pause: an agent that lost a thread would stop reporting, and its job would wait for it.
    """

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        super().__init__(name=name, daemon=True)
        self._work = work
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
            backoff.sleep()
