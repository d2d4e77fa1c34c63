"""Exchanges states and instructions with the server, in two threads with one connection each, next to the agent's work.

One thread sends the worker's state whenever that changes. The other waits for instructions (a long poll), which is also
the worker's sign of life. Stacks and sessions have threads of their own. `peer_channel` is the counterpart without a
server.
"""

import http.client
import json
import socket
import threading
import time
from contextlib import suppress
from functools import partial
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, TypeVar

from client_lib.worker import control
from client_lib.worker.pod.server_client import Instruction, ServerClient
from client_lib.worker.pod.threads import AgentThread, Backoff
from client_lib.worker.server_connection import Rejected, RequestFailed, Unreachable
from client_lib.worker.session_frames import BLOCK, EXIT, SILENT_S, json_frame

T = TypeVar("T")

WAIT_S = 30.0  # of one long poll: shorter than proxies keep an idle connection
_SOON_S = 1.0
CONFLICT = 409  # another pod owns this worker
_UNAUTHORIZED = 401


class Replaced(Exception):
    """Another pod owns this worker: nothing may run here."""


class AgentEvent(NamedTuple):
    """Wakes the agent's main thread: one of these has changed, or none of them and a child has ended."""

    launcher: Optional[str] = None
    instruction: Optional[Instruction] = None
    replaced: bool = False
    """Another pod owns the worker."""
    stacks: Optional[str] = None
    """Mark of an order for the stacks of the ranks."""
    session: Optional[str] = None
    """Mark of a session of the user to take up."""
    quiet: Optional[Dict[str, float]] = None
    """The ranks in the launcher's event with that name."""


class ServerChannel:
    """`post` gets each new instruction, each order for stacks or a session, and the loss of the worker, on another
    thread."""

    def __init__(
        self,
        new_server: Callable[[], ServerClient],
        signs_of_life: Callable[[], int],
        post: Callable[[AgentEvent], None],
        warn: Callable[[str], None],
    ) -> None:
        self._new_server, self._signs_of_life, self._post, self._warn = new_server, signs_of_life, post, warn
        self._state = "preparing"
        self._quiet: Dict[str, float] = {}
        self._sent = (self._state, self._quiet)
        self._changed = threading.Event()
        self._known, self._stacks = "wait", ""
        self._answered_at = time.monotonic()

    def claim(self) -> None:
        """Become the owner of the worker; nothing of the job may be touched before. Raises Replaced; Unreachable: try
        again."""
        server = self._new_server()
        try:
            server.put_state("preparing", 0, "", 0.0)
        except Rejected as rejected:
            raise (Replaced if rejected.status == CONFLICT else Unreachable)(str(rejected)) from rejected
        finally:
            server.close()

    def start(self) -> None:
        for run in (self._send_states, self._wait_for_instructions):
            AgentThread(run.__name__, run, self._warn).start()

    def send_state(self, state: str) -> None:
        """Send it now or as soon as the server answers."""
        self._state = state
        self._changed.set()

    def send_quiet(self, ranks: Dict[str, float]) -> None:
        """Send the quiet ranks with the state, now or as soon as the server answers."""
        self._quiet = ranks
        self._changed.set()

    @property
    def silent_s(self) -> float:
        """Seconds since the server last answered."""
        return time.monotonic() - self._answered_at

    def deliver(self, report: Mapping[str, Any], results: List[str], given_up: Callable[[], bool]) -> bool:
        """Send results, then the report; False: given up, or the server rejects the report."""
        server = self._new_server()
        for path in results:
            self._insist(lambda: server.put_result(path), given_up)  # noqa: B023  # called at once
        return self._insist(lambda: server.put_report(report), given_up)

    def send_stacks(self, mark: str, processes: List[Any]) -> None:
        """Send the stacks once, on a thread of their own. They are not sent again: the server waits for seconds."""

        def send() -> None:
            server = self._new_server()
            try:
                server.put_stacks(mark, processes)
            except (Rejected, Unreachable) as error:
                self._warn("the stacks could not be sent: %s" % error)
            finally:
                server.close()

        AgentThread("stacks", send, self._warn, again=False).start()

    def carry_session(self, mark: str, control_path: str) -> None:
        """Carry a session of the user to its end, on a thread of its own."""
        run = partial(_carry, self._new_server, mark, control_path)
        AgentThread("session", run, self._warn, again=False).start()

    def _insist(self, call: Callable[[], None], given_up: Callable[[], bool]) -> bool:
        backoff = Backoff()
        while not given_up():
            try:
                call()
                self._answered_at = time.monotonic()
                return True
            except Rejected as rejected:
                self._warn("the server rejects what is left: %s" % rejected)
                return False
            except Unreachable as error:
                self._warn("what is left waits for the server: %s" % error)
                backoff.sleep()
        return False

    def _send_states(self) -> None:
        server, backoff = self._new_server(), Backoff()
        while True:
            state, quiet = self._state, self._quiet
            if (state, quiet) == self._sent:
                self._changed.wait()
                self._changed.clear()
            elif self._exchange(server, state, 0.0):
                self._sent = (state, quiet)
                backoff.reset()
            else:
                backoff.sleep()

    def _wait_for_instructions(self) -> None:
        server, backoff = self._new_server(), Backoff()
        while True:
            known, began = (self._known, self._stacks), time.monotonic()
            answered = self._exchange(server, self._state, WAIT_S)
            if answered and ((self._known, self._stacks) != known or time.monotonic() - began > _SOON_S):
                backoff.reset()
            else:  # a server that shuts down answers at once, without news
                backoff.sleep()

    def _exchange(self, server: ServerClient, state: str, wait_s: float) -> bool:
        """False: there was no answer."""
        try:
            life = self._signs_of_life()
            instruction = server.put_state(state, life, self._known, wait_s, self._stacks, self._quiet)
        except Unreachable:
            return False
        except Rejected as rejected:
            if rejected.status == CONFLICT:
                self._post(AgentEvent(replaced=True))
            elif rejected.status == _UNAUTHORIZED:  # the attempt was closed: the server expects nothing of this worker
                self._post(AgentEvent(instruction=Instruction("exit")))
            return False
        self._answered_at = time.monotonic()
        if wait_s and instruction.stacks not in (None, self._stacks):
            self._stacks = instruction.stacks or ""
            self._post(AgentEvent(stacks=self._stacks))
        if instruction.session is not None:
            self._post(AgentEvent(session=instruction.session))
        if wait_s and instruction.do != self._known:
            self._known = instruction.do
            self._post(AgentEvent(instruction=instruction))
        return True


def until_answered(call: Callable[[], T], check_stop: Callable[[], None], warn: Callable[[str], None]) -> T:
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


# --- sessions: two streams of bytes between the server and the launcher of this pod, unread


def _carry(new_server: Callable[[], ServerClient], mark: str, control_path: str) -> None:
    """Take up the session with this mark, and return at its end."""
    down, up, sent = new_server(), new_server(), 0

    def send(data: bytes) -> None:
        nonlocal sent
        backoff = Backoff()
        while True:
            try:
                up.put_session(mark, sent, data)
                break
            except Unreachable:  # also while the user reads nothing
                backoff.sleep()
        sent += len(data)

    try:
        from_user = down.call("GET", "/sessions/" + mark, wait_s=SILENT_S)
        request = json.loads(from_user.readline())
        try:
            with control.connect(control_path) as peer:
                control.begin_session(peer, request)
                threading.Thread(target=_pass_on, args=(from_user, peer), daemon=True).start()
                try:
                    for data in iter(lambda: peer.recv(BLOCK), b""):
                        send(data)
                finally:
                    with suppress(OSError):
                        peer.shutdown(socket.SHUT_RDWR)  # `close` alone waits for the other thread
        except OSError as error:
            send(json_frame(EXIT, {"error": str(error)}))
        send(b"")
    except (OSError, RequestFailed, http.client.HTTPException):  # the session has ended, with the user or the server
        pass
    finally:
        up.close()
        down.close()


def _pass_on(from_user: http.client.HTTPResponse, peer: socket.socket) -> None:
    try:
        for data in iter(lambda: from_user.read1(BLOCK), b""):
            peer.sendall(data)
        peer.shutdown(socket.SHUT_RDWR)
    except (OSError, http.client.HTTPException, ValueError):  # the same as the end
        pass
