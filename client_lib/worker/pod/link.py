"""What the agent says to the server and hears from it, while it does other things: two threads with a connection each.

One tells how far the worker is, as soon as that changes; the other waits for orders (a long poll), and so is the
worker's sign of life. What it hears becomes events of the agent. `peers` is its twin without a server.

Standard library only, Python >= 3.8.
"""

import queue
import threading
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from client_lib.worker.pod.pauses import Pauses
from client_lib.worker.pod.server import Refused, Server, Unreachable

WAIT_S = 30.0  # of one long poll: what lies between keeps no connection idle for so long
_SOON_S = 1.0
CONFLICT = 409  # status of the answer to a pod whose worker is another pod's
_UNAUTHORIZED = 401


class Order(NamedTuple):
    """What the worker is to do: go, stop or exit."""

    do: str
    grace_s: Optional[float] = None


class Replaced(Exception):
    """Another pod owns this worker's place: nothing may run here."""


class ServerLink:
    """`on_order` gets each new order, on another thread; `on_replaced` is called when the place is another pod's."""

    def __init__(
        self,
        new_server: Callable[[], Server],
        signs_of_life: Callable[[], int],
        on_order: Callable[[Order], None],
        on_replaced: Callable[[], None],
        warn: Callable[[str], None],
    ) -> None:
        self._new_server, self._signs_of_life = new_server, signs_of_life
        self._on_order, self._on_replaced, self._warn = on_order, on_replaced, warn
        self._state = "preparing"
        self._knows = "wait"
        self._states: "queue.SimpleQueue[str]" = queue.SimpleQueue()
        self._answered_at = time.monotonic()

    def claim(self) -> Optional[str]:
        """Take the worker's place: before it, nothing of the job may be touched. None: it is ours.

        Raises Replaced; else gives back why it has to be tried again.
        """
        server = self._new_server()
        try:
            server.say("preparing", 0, "", 0.0)
        except Refused as refused:
            if refused.status == CONFLICT:
                raise Replaced(str(refused)) from refused
            return str(refused)
        except Unreachable as error:
            return str(error)
        finally:
            server.close()
        return None

    def start(self) -> None:
        for run in (self._tell_states, self._wait_for_orders):
            threading.Thread(target=run, name=run.__name__, daemon=True).start()

    def tell(self, state: str) -> None:
        """Say it now or as soon as the server answers."""
        self._state = state
        self._states.put(state)

    @property
    def silent_s(self) -> float:
        """Seconds since the server last answered."""
        return time.monotonic() - self._answered_at

    def deliver(self, report: Dict[str, Any], results: List[str], given_up: Callable[[], bool]) -> bool:
        """Bring results, then the report; False: it was given up, or the server does not want the report."""
        server = self._new_server()
        for path in results:
            self._insist(lambda: server.put_result(path), given_up)  # noqa: B023  # called at once
        return self._insist(lambda: server.put_report(report), given_up)

    def _insist(self, call: Callable[[], None], given_up: Callable[[], bool]) -> bool:
        pauses = Pauses()
        while not given_up():
            try:
                call()
                self._answered_at = time.monotonic()
                return True
            except Refused as refused:
                self._warn("the server does not take what is left: %s" % refused)
                return False
            except Unreachable as error:
                self._warn("what is left waits for the server: %s" % error)
                pauses.sleep()
        return False

    def _tell_states(self) -> None:
        server, pauses = self._new_server(), Pauses()
        while True:
            state = self._states.get()
            while not self._ask(server, state, 0.0):
                pauses.sleep()
            pauses.reset()

    def _wait_for_orders(self) -> None:
        server, pauses = self._new_server(), Pauses()
        while True:
            known, began = self._knows, time.monotonic()
            answered = self._ask(server, self._state, WAIT_S)
            if answered and (self._knows != known or time.monotonic() - began > _SOON_S):
                pauses.reset()
            else:  # also a server that stops answers at once, and says nothing new
                pauses.sleep()

    def _ask(self, server: Server, state: str, wait_s: float) -> bool:
        """False: there was no answer."""
        try:
            answer = server.say(state, self._signs_of_life(), self._knows, wait_s)
        except Unreachable:
            return False
        except Refused as refused:
            if refused.status == CONFLICT:
                self._on_replaced()
            elif refused.status == _UNAUTHORIZED:  # the attempt was closed: nobody waits for anything of this worker
                self._on_order(Order("exit"))
            return False
        self._answered_at = time.monotonic()
        if wait_s and answer["do"] != self._knows:
            self._knows = answer["do"]
            self._on_order(Order(answer["do"], answer.get("grace_s")))
        return True
