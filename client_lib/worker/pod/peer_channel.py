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
from functools import partial
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional

from client_lib.worker.control import Lines, Message, encode
from client_lib.worker.outcome import COMPLETED
from client_lib.worker.pod.settings import PodSettings
from client_lib.worker.pod.threads import AgentEvent, AgentThread, Backoff, Instruction, warn
from client_lib.worker.server_connection import Unreachable

PROTOCOL = 1
_CONNECT_S = 5.0
_POLL_S = 0.1


class PeerChannel:
    """The same methods as ServerChannel, and the same events."""

    def __init__(self, pod: PodSettings, token: str, post: Callable[[AgentEvent], None]) -> None:
        self._pod, self._token, self._post = pod, token, post
        self._barrier = StartBarrier(pod, token) if pod.worker == 0 else None
        self._state: Dict[str, Any] = {"state": "preparing", "failed": False}
        self._ended_at: Optional[float] = None

    def claim(self) -> None:
        """Raises Unreachable: try again."""
        if self._barrier is not None:
            self._barrier.listen()

    def start(self) -> None:
        if self._barrier is not None:
            AgentThread("instructions", partial(self._follow_barrier, self._barrier)).start()
        else:
            AgentThread("instructions", self._connect_to_barrier).start()

    def send_state(self, state: str) -> None:
        self._state = dict(self._state, state=state)

    @property
    def silent_s(self) -> float:
        """Seconds since there was anything to wait for, once this worker has ended."""
        if self._ended_at is None or (self._barrier is not None and self._barrier.others_run()):
            return 0.0
        return time.monotonic() - self._ended_at

    def deliver(self, report: Mapping[str, Any], results: List[str], _given_up: Callable[[], bool]) -> bool:
        """Announce the end. The report reaches the cluster alone, as the termination message."""
        if results:
            warn("results of a function can't be delivered: no server is reachable from this pod")
        self._ended_at = time.monotonic()
        self._state = {"state": "ended", "failed": report["reason"] != COMPLETED}
        return True

    def _follow_barrier(self, barrier: "StartBarrier") -> None:
        last = "wait"
        while True:
            barrier.update(0, self._state)
            do = barrier.instruction(0)
            if do != last:
                last = do
                self._post(AgentEvent(instruction=Instruction(do)))
            time.sleep(_POLL_S)

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
        hello = {"protocol": PROTOCOL, "token": self._token, "worker": self._pod.worker, "uid": self._pod.uid}
        worker_0.sendall(encode(hello))
        sent = None
        for messages in _received(worker_0):
            for message in messages:
                do = str(message.get("do"))
                self._post(AgentEvent(replaced=True) if do == "leave" else AgentEvent(instruction=Instruction(do)))
            state = self._state
            if state is not sent:
                worker_0.sendall(encode(state))
                sent = state
            if state["state"] == "ended":
                return


def _received(peer: socket.socket) -> Iterator[List[Message]]:
    """The messages that arrive until the connection ends; an empty list at first and every _POLL_S. Raises OSError."""
    peer.settimeout(_POLL_S)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    lines = Lines()
    yield []
    while True:
        try:
            data = peer.recv(65536)
        except socket.timeout:
            yield []
            continue
        if not data:
            return
        yield lines.feed(data)


# --- the side of worker 0


_LOST_S = 30.0  # a worker that has been disconnected for this long is not waited for
# time in which the cluster notices that a worker has ended: the end of the master deletes the log of pods that it
# believes to be running
_NOTICE_S = 3.0


class StartBarrier:
    """The state of all workers, as worker 0 knows it. Thread-safe."""

    def __init__(self, pod: PodSettings, token: str) -> None:
        self._pod, self._token = pod, token
        self._lock = threading.RLock()
        self._owners: Dict[int, str] = {0: pod.uid}
        self._states: Dict[int, Dict[str, Any]] = {}
        self._lost_at: Dict[int, float] = {}
        self._open = False

    def listen(self) -> None:
        """Serve the workers that connect to the port, in threads. Raises Unreachable: the port can't be listened on."""
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        try:
            listener = socket.create_server(
                ("", self._pod.barrier_port), family=family, dualstack_ipv6=both, backlog=1024
            )
        except OSError as error:
            raise Unreachable("port %d can't be listened on: %s" % (self._pod.barrier_port, error)) from error
        AgentThread("barrier", partial(self._accept, listener)).start()

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
                return "wait" if self.others_run() else "exit"
            if any(each.get("failed") for each in self._states.values()):
                return "stop"
            return "go" if self._open and state in ("ready", "started") else "wait"

    def others_run(self) -> bool:
        """Another worker has connected and is there, or was a moment ago."""
        now = time.monotonic()
        with self._lock:
            return any(
                now - self._lost_at.get(worker, now) < (_NOTICE_S if each.get("state") == "ended" else _LOST_S)
                for worker, each in self._states.items()
                if worker != 0
            )

    def _accept(self, listener: socket.socket) -> None:
        while True:
            peer, _ = listener.accept()
            AgentThread("peer", partial(self._serve, peer), again=False).start()

    def _serve(self, peer: socket.socket) -> None:
        """Exchange messages with a worker until its connection ends."""
        worker: Optional[int] = None
        sent = "wait"
        try:
            with peer:
                for messages in _received(peer):
                    for message in messages:
                        if worker is not None:
                            self.update(worker, message)
                            continue
                        worker = self._admit(message)
                        if worker is None:  # another pod owns it
                            peer.sendall(encode({"do": "leave"}))
                            return
                    do = "wait" if worker is None else self.instruction(worker)
                    if do != sent:
                        sent = do
                        peer.sendall(encode({"do": do}))
        except OSError:  # disconnected, or (PermissionError) a peer without a valid token
            pass
        finally:
            if worker is not None:
                with self._lock:
                    self._lost_at[worker] = time.monotonic()

    def _admit(self, hello: Message) -> Optional[int]:
        """The worker that has connected; None: another pod owns it. Raises PermissionError: the token is not valid."""
        worker, uid = hello.get("worker"), str(hello.get("uid"))
        known = hmac.compare_digest(str(hello.get("token")).encode(), self._token.encode())
        if not known or not isinstance(worker, int) or not 0 < worker < self._pod.n_workers:
            raise PermissionError
        with self._lock:
            if self._owners.setdefault(worker, uid) != uid:
                return None
            self._lost_at.pop(worker, None)
        return worker
