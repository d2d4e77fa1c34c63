"""Where the workers of a gang meet without a server: a port of worker 0.

Worker 0 counts, tells all to go, tells the others to stop when one fails, and stays until they have ended. The token
proves who comes, and the first pod that comes for a worker owns its place. One JSON object per line:

    worker i -> worker 0   {"protocol": 1, "token": ..., "worker": i, "uid": ...}, then, whenever it has changed,
                           {"state": "preparing" | "ready" | "started" | "ended", "failed": false}
    worker 0 -> worker i   {"do": "go"} | {"do": "stop"} | {"do": "leave"} (another pod has this place)

Standard library only, Python >= 3.8.
"""

import hmac
import socket
import threading
import time
from typing import Any, Dict, Optional

from client_lib.worker.control import Lines, Message, encode
from client_lib.worker.pod.link import Replaced
from client_lib.worker.pod.place import Pod

PROTOCOL = 1
_LOST_S = 30.0  # a worker whose connection has been gone for so long is not waited for
_SEEN_S = 3.0  # until the cluster has seen a worker's end: of pods that it thinks run, the master's end deletes the log
_LOOK_S = 0.1


class Gate:
    """What worker 0 knows of all. For several threads."""

    def __init__(self, pod: Pod, token: str) -> None:
        self._pod, self._token = pod, token
        self._lock = threading.Lock()
        self._owners: Dict[int, str] = {0: pod.uid}
        self._said: Dict[int, Dict[str, Any]] = {}
        self._lost_at: Dict[int, float] = {}
        self._open = False
        self._socket: Optional[socket.socket] = None

    def listen(self) -> Optional[str]:
        """Why the port can't be had; None: it listens."""
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        try:
            self._socket = socket.create_server(
                ("", self._pod.gate_port), family=family, dualstack_ipv6=both, backlog=1024
            )
        except OSError as error:
            return "port %d can't be listened on: %s" % (self._pod.gate_port, error)
        return None

    def start(self) -> None:
        threading.Thread(target=self._accept, name="gate", daemon=True).start()

    def hear(self, worker: int, said: Dict[str, Any]) -> None:
        with self._lock:
            self._said[worker] = said
            ready = sum(each.get("state") in ("ready", "started") for each in self._said.values())
            self._open = self._open or ready == self._pod.n_workers

    def order(self, worker: int) -> str:
        """wait, go, stop or exit."""
        with self._lock:
            state = self._said.get(worker, {}).get("state")
            if state == "ended":
                return "wait" if self._others_run() else "exit"
            if any(said.get("failed") for said in self._said.values()):
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
            for worker, said in self._said.items()
            if worker != 0
        )

    def admit(self, who: Message) -> int:
        """Which worker has come. Raises PermissionError: none of this gang; Replaced: its place is another pod's."""
        worker, uid = who.get("worker"), str(who.get("uid"))
        known = hmac.compare_digest(str(who.get("token")).encode(), self._token.encode())
        if not known or not isinstance(worker, int) or not 0 < worker < self._pod.n_workers:
            raise PermissionError
        with self._lock:
            if self._owners.setdefault(worker, uid) != uid:
                raise Replaced()
            self._lost_at.pop(worker, None)
        return worker

    def lose(self, worker: int) -> None:
        """Its connection has ended."""
        with self._lock:
            self._lost_at[worker] = time.monotonic()

    def _accept(self) -> None:
        assert self._socket is not None
        while True:
            peer, _ = self._socket.accept()
            threading.Thread(target=_Guest(self, peer).serve, name="guest", daemon=True).start()


class _Guest:
    """One connection, to its end."""

    def __init__(self, gate: Gate, peer: socket.socket) -> None:
        self._gate, self._peer = gate, peer
        self._lines = Lines()
        self._worker: Optional[int] = None
        self._knows = "wait"

    def serve(self) -> None:
        self._peer.settimeout(_LOOK_S)
        self._peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        with self._peer:
            try:
                while self._hear():
                    self._tell()
            except Replaced:
                self._peer.sendall(encode({"do": "leave"}))
            except OSError:  # gone, or (PermissionError) nobody of ours
                pass
        if self._worker is not None:
            self._gate.lose(self._worker)

    def _hear(self) -> bool:
        """False: the connection has ended."""
        try:
            data = self._peer.recv(65536)
        except socket.timeout:
            return True
        for message in self._lines.feed(data):
            if self._worker is None:
                self._worker = self._gate.admit(message)
            else:
                self._gate.hear(self._worker, message)
        return bool(data)

    def _tell(self) -> None:
        if self._worker is None:
            return
        order = self._gate.order(self._worker)
        if order != self._knows:
            self._knows = order
            self._peer.sendall(encode({"do": order}))
