"""Starts and ends a gang without a server: the other workers connect to a port of worker 0, the
start barrier.

The counterpart of `server_channel` for pods that reach no server. Worker 0 counts the workers that
are ready, starts all of them, stops the others when one fails, and stays until they have ended. The
token proves that a pod belongs to the gang; the first pod that connects for a worker owns that
worker. One JSON object per line:

    worker i -> worker 0   {"protocol": 1, "token": ..., "worker": i, "uid": ...}
                           then, after each change:
                           {"state": "preparing" | "ready" | "started" | "ended", "failed": false}
    worker 0 -> worker i   {"do": "go"} | {"do": "stop"} | {"do": "leave"}
                           leave: another pod owns this worker
"""

import hmac
import socket
import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Callable, Dict, List, Optional

from client_lib.launcher_protocol.control import ControlConnection, Message, encode
from client_lib.launcher_protocol.reasons import COMPLETED
from client_lib.worker.pod import LEAVE, AgentEvent, AgentThread, Backoff, Instruction, warn
from client_lib.worker.pod.settings import PodSettings
from client_lib.worker.server_connection import Unreachable

if TYPE_CHECKING:
    from client_lib.launcher_protocol.report import Report

PROTOCOL = 1
_CONNECT_S = 5.0


class PeerChannel:
    """Has the methods of ServerChannel, and brings its events."""

    # no server is waited for: the instruction to exit follows from the other workers
    answered_at = float("inf")

    def __init__(self, pod: PodSettings, token: str, post: Callable[[AgentEvent], None]) -> None:
        self._pod = pod
        self._token = token
        self._post = post
        self._barrier = StartBarrier(pod, token, self._obey) if pod.worker == 0 else None
        self._state: Message = {"state": "preparing", "failed": False}
        self._lock = threading.Lock()
        self._worker_0: Optional[socket.socket] = None
        self._announced = False  # the end of this worker was sent to worker 0

    def claim(self) -> None:
        """Raises Unreachable: try again."""
        if self._barrier is not None:
            self._barrier.listen()

    def start(self) -> None:
        if self._barrier is None:
            AgentThread("instructions", self._connect_to_barrier).start()
        else:  # from now on the failure of another worker stops this one
            self._barrier.update(0, self._state)

    def send_state(self, state: str) -> None:
        self._tell({**self._state, "state": state})

    def deliver(self, report: "Report", results: List[str], _given_up: Callable[[], bool]) -> bool:
        """Announce the end. The report reaches the cluster alone, as the termination message."""
        if results:
            warn("results of a function can't be delivered: no server is reachable from this pod")
        self._tell({"state": "ended", "failed": report["reason"] != COMPLETED})
        return True

    def _obey(self, do: str) -> None:
        self._post(Instruction(do))

    def _tell(self, state: Message) -> None:
        """Send the state now, or as soon as there is a connection."""
        with self._lock:
            self._state = state
            if self._barrier is not None:
                self._barrier.update(0, state)
            self._send_state()

    def _send_state(self) -> None:
        if self._worker_0 is not None:
            with suppress(OSError):
                self._worker_0.sendall(encode(self._state))
                if self._state["state"] == "ended":
                    self._announced = True
                    self._worker_0.shutdown(socket.SHUT_RDWR)  # ends the wait for instructions

    def _connect_to_barrier(self) -> None:
        """Take instructions until this worker has ended. If it ends without a connection,
        try once to announce that.
        """
        backoff = Backoff()
        address = (self._pod.master_addr, self._pod.barrier_port)
        hello = {
            "protocol": PROTOCOL,
            "token": self._token,
            "worker": self._pod.worker,
            "uid": self._pod.uid,
        }
        while True:
            ended = self._state["state"] == "ended"
            # its name does not resolve yet, it does not listen yet, or it is gone
            with suppress(OSError), socket.create_connection(address, _CONNECT_S) as worker_0:
                backoff.reset()
                worker_0.sendall(encode(hello))
                with self._lock:
                    self._worker_0 = worker_0
                    self._send_state()
                for message in iter(_connection(worker_0).receive, None):
                    self._obey(str(message.get("do")))
            with self._lock:
                self._worker_0 = None
            if ended or self._announced:
                self._obey("exit")
                return
            backoff.sleep()


def _connection(peer: socket.socket) -> ControlConnection:
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return ControlConnection(peer)


# --- the side of worker 0

_LOST_S = 30.0  # a worker that has been disconnected for this long is not waited for
# in this time the cluster notices the end of a worker: the end of the master deletes the log of
# pods that seem to run
_NOTICE_S = 3.0


class StartBarrier:
    """The state of all workers, as worker 0 knows it. `instruct` gets the instructions
    of worker 0. Thread-safe.
    """

    def __init__(self, pod: PodSettings, token: str, instruct: Callable[[str], None]) -> None:
        self._pod = pod
        self._token = token
        self._instruct = instruct
        self._lock = threading.RLock()
        self._owners: Dict[int, str] = {0: pod.uid}
        self._states: Dict[int, Message] = {}
        # the other workers; a worker that has ended stays for a while
        self._peers: Dict[int, socket.socket] = {}
        self._told: Dict[int, str] = {}
        self._open = False

    def listen(self) -> None:
        """Serve the workers that connect to the port, in threads. Raises Unreachable: the
        port can't be listened on.
        """
        both = socket.has_dualstack_ipv6()
        port = self._pod.barrier_port
        family = socket.AF_INET6 if both else socket.AF_INET
        try:
            listener = socket.create_server(
                ("", port), family=family, dualstack_ipv6=both, backlog=1024
            )
        except OSError as error:
            raise Unreachable("port %d can't be listened on: %s" % (port, error)) from error
        AgentThread("barrier", partial(self._accept, listener)).start()

    def update(self, worker: int, state: Message) -> None:
        """Note the state of a worker, and tell each worker what changes for it."""
        with self._lock:
            self._states[worker] = state
            ready = sum(each.get("state") in ("ready", "started") for each in self._states.values())
            self._open = self._open or ready == self._pod.n_workers
            self._tell_all()

    def _tell_all(self) -> None:
        for worker in self._states:
            do = self._instruction(worker)
            if do == self._told.get(worker, "wait"):
                continue
            self._told[worker] = do
            if worker == 0:
                self._instruct(do)
            elif worker in self._peers:
                with suppress(OSError):  # it is gone: a new connection gets the instruction
                    self._peers[worker].sendall(encode({"do": do}))

    def _instruction(self, worker: int) -> str:
        state = self._states[worker].get("state")
        if state == "ended":
            return "wait" if self._peers else "exit"
        if any(each.get("failed") for each in self._states.values()):
            return "stop"
        return "go" if self._open and state in ("ready", "started") else "wait"

    def _accept(self, listener: socket.socket) -> None:
        while True:
            peer, _ = listener.accept()
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        """Take messages from a worker until its connection ends, and forget it after a while."""
        worker: Optional[int] = None
        with peer, suppress(OSError):  # the peer is gone, or has no valid token (PermissionError)
            for message in iter(_connection(peer).receive, None):
                if worker is not None:
                    self.update(worker, message)
                    continue
                worker = self._admit(message, peer)
                if worker is None:
                    peer.sendall(encode({"do": LEAVE}))
                    return
        if worker is not None:
            time.sleep(
                _NOTICE_S if self._states.get(worker, {}).get("state") == "ended" else _LOST_S
            )
            with self._lock:
                if self._peers.get(worker) is peer:
                    del self._peers[worker]
                    self._tell_all()

    def _admit(self, hello: Message, peer: socket.socket) -> Optional[int]:
        """The worker that has connected; None: another pod owns it. Raises
        PermissionError: the token is not valid.
        """
        worker = hello.get("worker")
        uid = str(hello.get("uid"))
        known = hmac.compare_digest(
            str(hello.get("token")).encode(errors="replace"), self._token.encode()
        )
        if not known or not isinstance(worker, int) or not 0 < worker < self._pod.n_workers:
            raise PermissionError
        with self._lock:
            if self._owners.setdefault(worker, uid) != uid:
                return None
            self._peers[worker] = peer
            self._told.pop(worker, None)
        return worker
