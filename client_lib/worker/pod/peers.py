"""The gang without a server: worker 0 listens, the others come to it, and ranks start when all are ready.

For pods that can't reach any server; the twin of `link`. What they say to each other is in `gate`.

Standard library only, Python >= 3.8.
"""

import socket
import threading
import time
from typing import Any, Callable, Dict, List, Optional

from client_lib.worker.control import Lines, encode
from client_lib.worker.outcome import COMPLETED
from client_lib.worker.pod.gate import PROTOCOL, Gate
from client_lib.worker.pod.link import Order
from client_lib.worker.pod.pauses import Pauses
from client_lib.worker.pod.place import Pod

_CONNECT_S = 5.0


class Peers:
    """The twin of ServerLink. `on_order` and `on_replaced` as there."""

    def __init__(
        self,
        pod: Pod,
        token: str,
        on_order: Callable[[Order], None],
        on_replaced: Callable[[], None],
        warn: Callable[[str], None],
    ) -> None:
        self._pod, self._token, self._warn = pod, token, warn
        self._on_order, self._on_replaced = on_order, on_replaced
        self._gate = Gate(pod, token) if pod.worker == 0 else None
        self._said: Dict[str, Any] = {"state": "preparing", "failed": False}
        self._ended_at: Optional[float] = None
        self._changed = threading.Condition()

    def claim(self) -> Optional[str]:
        """Why it has to be tried again; None: ours."""
        return self._gate.listen() if self._gate is not None else None

    def start(self) -> None:
        run = self._keep_the_gate if self._gate is not None else self._come_to_the_gate
        threading.Thread(target=run, name=run.__name__, daemon=True).start()

    def tell(self, state: str) -> None:
        self._say(state=state)

    @property
    def silent_s(self) -> float:
        """Seconds since anything was there to wait for, once this worker has ended."""
        if self._ended_at is None or (self._gate is not None and self._gate.others_run()):
            return 0.0
        return time.monotonic() - self._ended_at

    def deliver(self, report: Dict[str, Any], results: List[str], _given_up: Callable[[], bool]) -> bool:
        """There is nobody to take a report but the cluster, which has its digest."""
        if results:
            self._warn("results of a function can't be brought anywhere: no server can be reached from this pod")
        self._ended_at = time.monotonic()
        self._say(state="ended", failed=report["reason"] != COMPLETED)
        return True

    def _say(self, **said: Any) -> None:
        with self._changed:
            self._said = dict(self._said, **said)
            self._changed.notify_all()

    # --- worker 0

    def _keep_the_gate(self) -> None:
        assert self._gate is not None
        gate, knows = self._gate, "wait"
        gate.start()
        while True:
            gate.hear(0, self._said)
            order = gate.order(0)
            if order != knows:
                knows = order
                self._on_order(Order(order))
            with self._changed:
                self._changed.wait(0.1)

    # --- the others

    def _come_to_the_gate(self) -> None:
        pauses = Pauses()
        while True:
            try:
                address = (self._pod.master_addr, self._pod.gate_port)
                with socket.create_connection(address, timeout=_CONNECT_S) as gate:
                    pauses.reset()
                    self._talk(gate)
            except OSError:  # its name is not known yet, it doesn't listen yet, or it is gone
                pass
            if self._said["state"] == "ended":
                self._on_order(Order("exit"))
                return
            pauses.sleep()

    def _talk(self, gate: socket.socket) -> None:
        """Return when the connection has ended, or everything was said."""
        gate.settimeout(0.1)
        gate.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        who = {"protocol": PROTOCOL, "token": self._token, "worker": self._pod.worker, "uid": self._pod.uid}
        gate.sendall(encode(who))
        lines, told = Lines(), None
        while True:
            said = self._said
            if said is not told:
                gate.sendall(encode(said))
                told = said
            if said["state"] == "ended":
                return
            try:
                data = gate.recv(65536)
            except socket.timeout:
                continue
            if not data:
                return
            for message in lines.feed(data):
                self._obey(str(message.get("do")))

    def _obey(self, do: str) -> None:
        if do == "leave":
            self._on_replaced()
        else:
            self._on_order(Order(do))
