"""The gang without a server: worker 0 listens, the others come to it, and ranks start when all are ready.

For pods that can't reach any server. Worker 0 counts, tells all to go, tells the others to stop when one fails, and
stays until they have ended. The token proves who comes, and the first pod that comes for a worker owns its place.

    worker i -> worker 0   {"protocol": 1, "token": ..., "worker": i, "uid": ...}, then {"state": "ready", ...}
    worker 0 -> worker i   {"do": "go"} | {"do": "stop"} | {"do": "leave"} (another pod has this place)

Standard library only, Python >= 3.8.
"""

import hmac
import socket
import threading
import time
from typing import Any, Callable, Dict, List, Optional

from client_lib.worker.control import Lines, encode
from client_lib.worker.outcome import COMPLETED
from client_lib.worker.pod.link import Order, Replaced
from client_lib.worker.pod.pauses import Pauses
from client_lib.worker.pod.place import Pod

PROTOCOL = 1
_CONNECT_S = 5.0
_LOST_S = 30.0  # a worker whose connection has been gone for so long is not waited for
_SEEN_S = 3.0  # until the cluster has seen a worker's end: of pods that it thinks run, the master's end deletes the log


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
        self._gate = _Gate(pod, token) if pod.worker == 0 else None
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


class _Gate:
    """What worker 0 knows of all. For several threads."""

    def __init__(self, pod: Pod, token: str) -> None:
        self._pod, self._token = pod, token
        self._lock = threading.Lock()
        self._owners: Dict[int, str] = {0: pod.uid}
        self._states: Dict[int, Dict[str, Any]] = {}
        self._lost_at: Dict[int, float] = {}
        self._open = False
        self._socket: Optional[socket.socket] = None

    def listen(self) -> Optional[str]:
        """Why the port can't be had; None: it listens."""
        family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
        try:
            self._socket = socket.create_server(
                ("", self._pod.gate_port), family=family, dualstack_ipv6=family == socket.AF_INET6, backlog=1024
            )
        except OSError as error:
            return "port %d can't be listened on: %s" % (self._pod.gate_port, error)
        return None

    def start(self) -> None:
        threading.Thread(target=self._accept, name="gate", daemon=True).start()

    def hear(self, worker: int, said: Dict[str, Any]) -> None:
        with self._lock:
            self._states[worker] = said
            ready = sum(each.get("state") in ("ready", "started") for each in self._states.values())
            self._open = self._open or ready == self._pod.n_workers

    def order(self, worker: int) -> str:
        """wait, go, stop or exit."""
        with self._lock:
            state = self._states.get(worker, {}).get("state")
            if state == "ended":
                return "wait" if self._others_run() else "exit"
            if any(said.get("failed") for said in self._states.values()):
                return "stop"
            return "go" if self._open and state in ("ready", "started") else "wait"

    def others_run(self) -> bool:
        """Another worker has come and is there, or was a moment ago."""
        with self._lock:
            return self._others_run()

    def _others_run(self) -> bool:
        now = time.monotonic()
        return any(
            now - self._lost_at.get(worker, now) < (_SEEN_S if said.get("state") == "ended" else _LOST_S)
            for worker, said in self._states.items()
            if worker != 0
        )

    def _accept(self) -> None:
        assert self._socket is not None
        while True:
            peer, _ = self._socket.accept()
            threading.Thread(target=self._serve, args=(peer,), name="peer", daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        """One connection, to its end."""
        worker: Optional[int] = None
        lines, knows = Lines(), "wait"
        peer.settimeout(0.1)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        with peer:
            try:
                while True:
                    if worker is not None and self.order(worker) != knows:
                        knows = self.order(worker)
                        peer.sendall(encode({"do": knows}))
                    try:
                        data = peer.recv(65536)
                    except socket.timeout:
                        continue
                    if not data:
                        break
                    for message in lines.feed(data):
                        if worker is None:
                            worker = self._admitted(message)
                        else:
                            self.hear(worker, message)
            except Replaced:
                peer.sendall(encode({"do": "leave"}))
            except OSError:  # gone, or (PermissionError) nobody of ours
                pass
        if worker is not None:
            with self._lock:
                self._lost_at[worker] = time.monotonic()

    def _admitted(self, who: Dict[str, Any]) -> int:
        """Raises PermissionError: it is nobody of this gang; Replaced: its place is another pod's."""
        worker, uid = who.get("worker"), str(who.get("uid"))
        known = hmac.compare_digest(str(who.get("token")).encode(), self._token.encode())
        if not known or not isinstance(worker, int) or not 0 < worker < self._pod.n_workers:
            raise PermissionError
        with self._lock:
            if self._owners.setdefault(worker, uid) != uid:
                raise Replaced()
            self._lost_at.pop(worker, None)
        return worker
