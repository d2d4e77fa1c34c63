"""Starts and ends a gang without a server: the other workers connect to a port of worker 0, the start barrier.

The counterpart of `server_channel` for pods that reach no server. Worker 0 counts the workers that are ready, starts
all of them, stops the others when one fails, and stays until they have ended. The token proves that a pod belongs to
the gang; the first pod that connects for a worker owns that worker. One JSON object per line:

    worker i -> worker 0   {"protocol": 1, "token": ..., "worker": i, "uid": ...}, then, after each change,
                           {"state": "preparing" | "ready" | "started" | "ended", "failed": false}
    worker 0 -> worker i   {"do": "go"} | {"do": "stop"} | {"do": "leave"} (another pod owns this worker)
"""

import hmac
import socket
import threading
import time
from typing import Any, Callable, Dict, List, Mapping, Optional

from client_lib.worker.control import Lines, Message, encode
from client_lib.worker.outcome import COMPLETED
from client_lib.worker.pod.server_channel import AgentEvent, Replaced
from client_lib.worker.pod.server_client import Instruction
from client_lib.worker.pod.settings import PodSettings
from client_lib.worker.pod.threads import AgentThread, Backoff
from client_lib.worker.server_connection import Unreachable

_CONNECT_S = 5.0
_POLL_S = 0.1


class PeerChannel:
    """The same methods as ServerChannel, and the same events."""

    def __init__(
        self, pod: PodSettings, token: str, post: Callable[[AgentEvent], None], warn: Callable[[str], None]
    ) -> None:
        self._pod, self._token, self._post, self._warn = pod, token, post, warn
        self._barrier = StartBarrier(pod, token, warn) if pod.worker == 0 else None
        self._state: Dict[str, Any] = {"state": "preparing", "failed": False}
        self._ended_at: Optional[float] = None
        self._changed = threading.Condition()

    def claim(self) -> None:
        """Raises Unreachable: try again."""
        if self._barrier is not None:
            self._barrier.listen()

    def start(self) -> None:
        run = self._connect_to_barrier
        if self._barrier is not None:
            run = self._serve_barrier
            self._barrier.start()
        AgentThread(run.__name__, run, self._warn).start()

    def send_state(self, state: str) -> None:
        self._update(state=state)

    @property
    def silent_s(self) -> float:
        """Seconds since there was anything to wait for, once this worker has ended."""
        if self._ended_at is None or (self._barrier is not None and self._barrier.others_run()):
            return 0.0
        return time.monotonic() - self._ended_at

    def deliver(self, report: Mapping[str, Any], results: List[str], _given_up: Callable[[], bool]) -> bool:
        """Announce the end. The report reaches the cluster alone, as the termination message."""
        if results:
            self._warn("results of a function can't be delivered: no server is reachable from this pod")
        self._ended_at = time.monotonic()
        self._update(state="ended", failed=report["reason"] != COMPLETED)
        return True

    def _update(self, **changed: Any) -> None:
        with self._changed:
            self._state = dict(self._state, **changed)
            self._changed.notify_all()

    # --- worker 0

    def _serve_barrier(self) -> None:
        assert self._barrier is not None
        barrier, last = self._barrier, "wait"
        while True:
            barrier.update(0, self._state)
            do = barrier.instruction(0)
            if do != last:
                last = do
                self._post(AgentEvent(instruction=Instruction(do)))
            with self._changed:
                self._changed.wait(_POLL_S)

    # --- the others

    def _connect_to_barrier(self) -> None:
        backoff = Backoff()
        while True:
            try:
                address = (self._pod.master_addr, self._pod.barrier_port)
                with socket.create_connection(address, timeout=_CONNECT_S) as worker_0:
                    backoff.reset()
                    self._talk(worker_0)
            except OSError:  # its name does not resolve yet, it does not listen yet, or it is gone
                pass
            if self._state["state"] == "ended":
                self._post(AgentEvent(instruction=Instruction("exit")))
                return
            backoff.sleep()

    def _talk(self, worker_0: socket.socket) -> None:
        """Return when the connection or this worker has ended."""
        worker_0.settimeout(_POLL_S)
        worker_0.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        hello = {"protocol": PROTOCOL, "token": self._token, "worker": self._pod.worker, "uid": self._pod.uid}
        worker_0.sendall(encode(hello))
        lines, sent = Lines(), None
        while True:
            state = self._state
            if state is not sent:
                worker_0.sendall(encode(state))
                sent = state
            if state["state"] == "ended":
                return
            try:
                data = worker_0.recv(65536)
            except socket.timeout:
                continue
            if not data:
                return
            for message in lines.feed(data):
                do = str(message.get("do"))
                self._post(AgentEvent(replaced=True) if do == "leave" else AgentEvent(instruction=Instruction(do)))


# --- the side of worker 0


PROTOCOL = 1
_LOST_S = 30.0  # a worker that has been disconnected for this long is not waited for
# time in which the cluster notices that a worker has ended: the end of the master deletes the log of pods that it
# believes to be running
_NOTICE_S = 3.0


class StartBarrier:
    """The state of all workers, as worker 0 knows it. Thread-safe."""

    def __init__(self, pod: PodSettings, token: str, warn: Callable[[str], None]) -> None:
        self._pod, self._token, self._warn = pod, token, warn
        self._lock = threading.Lock()
        self._owners: Dict[int, str] = {0: pod.uid}
        self._states: Dict[int, Dict[str, Any]] = {}
        self._lost_at: Dict[int, float] = {}
        self._open = False
        self._socket: Optional[socket.socket] = None

    def listen(self) -> None:
        """Listen on the port. Raises Unreachable: that fails."""
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        try:
            self._socket = socket.create_server(
                ("", self._pod.barrier_port), family=family, dualstack_ipv6=both, backlog=1024
            )
        except OSError as error:
            raise Unreachable("port %d can't be listened on: %s" % (self._pod.barrier_port, error)) from error

    def start(self) -> None:
        AgentThread("barrier", self._accept, self._warn).start()

    def update(self, worker: int, state: Dict[str, Any]) -> None:
        with self._lock:
            self._states[worker] = state
            ready = sum(each.get("state") in ("ready", "started") for each in self._states.values())
            self._open = self._open or ready == self._pod.n_workers

    def instruction(self, worker: int) -> str:
        """wait, go, stop or exit."""
        with self._lock:
            state = self._states.get(worker, {}).get("state")
            if state == "ended":
                return "wait" if self._others_run() else "exit"
            if any(each.get("failed") for each in self._states.values()):
                return "stop"
            return "go" if self._open and state in ("ready", "started") else "wait"

    def others_run(self) -> bool:
        """Another worker has connected and is there, or was a moment ago."""
        with self._lock:
            return self._others_run()

    def _others_run(self) -> bool:
        now = time.monotonic()
        return any(
            now - self._lost_at.get(worker, now) < (_NOTICE_S if each.get("state") == "ended" else _LOST_S)
            for worker, each in self._states.items()
            if worker != 0
        )

    def admit(self, hello: Message) -> int:
        """The worker that has connected. Raises PermissionError for a stranger, Replaced if another pod owns the
        worker."""
        worker, uid = hello.get("worker"), str(hello.get("uid"))
        known = hmac.compare_digest(str(hello.get("token")).encode(), self._token.encode())
        if not known or not isinstance(worker, int) or not 0 < worker < self._pod.n_workers:
            raise PermissionError
        with self._lock:
            if self._owners.setdefault(worker, uid) != uid:
                raise Replaced()
            self._lost_at.pop(worker, None)
        return worker

    def disconnected(self, worker: int) -> None:
        with self._lock:
            self._lost_at[worker] = time.monotonic()

    def _accept(self) -> None:
        assert self._socket is not None
        while True:
            peer, _ = self._socket.accept()
            AgentThread("peer", _PeerConnection(self, peer).serve, self._warn, again=False).start()


class _PeerConnection:
    def __init__(self, barrier: StartBarrier, peer: socket.socket) -> None:
        self._barrier, self._peer = barrier, peer
        self._lines = Lines()
        self._worker: Optional[int] = None
        self._sent = "wait"

    def serve(self) -> None:
        try:
            with self._peer:
                self._converse()
        except OSError:  # disconnected, or (PermissionError) a peer without a valid token
            pass
        finally:
            if self._worker is not None:
                self._barrier.disconnected(self._worker)

    def _converse(self) -> None:
        self._peer.settimeout(_POLL_S)
        self._peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        try:
            while self._receive():
                self._send()
        except Replaced:
            self._peer.sendall(encode({"do": "leave"}))

    def _receive(self) -> bool:
        """False: the connection has ended."""
        try:
            data = self._peer.recv(65536)
        except socket.timeout:
            return True
        for message in self._lines.feed(data):
            if self._worker is None:
                self._worker = self._barrier.admit(message)
            else:
                self._barrier.update(self._worker, message)
        return bool(data)

    def _send(self) -> None:
        if self._worker is None:
            return
        instruction = self._barrier.instruction(self._worker)
        if instruction != self._sent:
            self._sent = instruction
            self._peer.sendall(encode({"do": instruction}))
