"""Exchanges states and instructions with the server, in two threads with one connection each, next
to the agent's work.

One thread sends the worker's state whenever that changes. The other waits for instructions (a long
poll), which is also the worker's sign of life. Stacks and sessions have threads of their own.
"""

import json
import os
import socket
import threading
import time
from contextlib import closing, suppress
from http.client import HTTPException, IncompleteRead
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Tuple
from urllib.parse import urlencode

from client_lib.durable import is_full, private, remove
from client_lib.launcher_protocol import control, frames
from client_lib.worker.pod import LEAVE, AgentEvent, AgentThread, Backoff, Instruction, warn
from client_lib.worker.pod.settings import PodSettings
from client_lib.worker.server_connection import (
    Rejected,
    RequestFailed,
    ServerConnection,
    Unreachable,
)

if TYPE_CHECKING:
    from client_lib.launcher_protocol.report import ProcessReport, Report

WAIT_S = 30.0  # of one long poll: shorter than proxies keep an idle connection
_SOON_S = 1.0
CONFLICT = 409  # another pod owns this worker
_UNAUTHORIZED = 401
_BLOCK = 256 * 1024


class Replaced(Exception):
    """Another pod owns this worker: nothing may run here."""


class ServerClient(ServerConnection):
    """The requests of a pod. Each may be repeated, and raises Unreachable or Rejected."""

    def __init__(self, pod: PodSettings, token: str, ca_file: Optional[str]) -> None:
        assert pod.worker_url is not None
        headers = {
            "Authorization": "Bearer " + token,
            "X-Pod-Uid": pod.uid,
            "X-Pod-Name": pod.name,
            "X-Pod-Start": pod.start,
        }
        super().__init__(pod.worker_url, ca_file, headers)

    def put_state(
        self,
        state: str,
        signs_of_life: int,
        known: str,
        wait_s: float,
        stacks: str,
        quiet: Mapping[str, float],
    ) -> Instruction:
        """Send the worker's state. Returns the worker's instruction as soon as it is not `known`,
        or orders stacks with another mark than `stacks`; at the latest after `wait_s`."""

        def read(answer: Any) -> Instruction:
            do = str(answer["do"])
            grace_s = answer.get("grace_s")
            return Instruction(
                do,
                None if grace_s is None else float(grace_s),
                answer.get("interrupt") is True,
                answer.get("stacks"),
                answer.get("session"),
            )

        path = "/state?" + urlencode({"knows": known, "wait": "%g" % wait_s})
        says = {"state": state, "signs_of_life": signs_of_life, "stacks": stacks, "quiet": quiet}
        return self.exchange(
            "PUT", path, json.dumps({**says, "sessions": True}).encode(), read, wait_s
        )

    def put_log(self, offset: int, records: bytes, gap: bool) -> Tuple[int, int]:
        """(length, durable) of the log that the server has stored."""
        path = "/log?offset=%d%s" % (offset, "&gap=1" if gap else "")
        return self.exchange(
            "PUT", path, records, lambda log: (int(log["length"]), int(log["durable"]))
        )

    def log_end(self) -> Tuple[int, int]:
        """(offset, seq) of the record that the server expects next."""
        return self.exchange(
            "PUT", "/log?offset=0", b"", lambda log: (int(log["length"]), int(log["next_seq"]))
        )

    def put_json(self, path: str, content: Mapping[str, object]) -> None:
        self.exchange("PUT", path, json.dumps(content).encode(), lambda _: None)

    def put_session(self, mark: str, offset: int, data: bytes) -> None:
        """Send bytes to the user of a session; none: the session has ended."""
        self.exchange("PUT", "/sessions/%s?offset=%d" % (mark, offset), data, lambda _: None)

    def put_result(self, path: str) -> None:
        """The file of one rank, named by its number."""
        with open(path, "rb") as file:
            self.exchange("PUT", "/results/" + os.path.basename(path), file, lambda _: None)

    def fetch(self, what: str, target: str, check_stop: Callable[[], None]) -> None:
        """Write the snapshot or the function (`what`) to a file. `check_stop` is called for each
        block; an exception that it raises ends the transfer. Raises OSError if the disk is full."""
        answer = self.call("GET", "/" + what)
        try:
            with open(target, "wb", opener=private) as file:
                for block in iter(lambda: answer.read(_BLOCK), b""):
                    check_stop()
                    file.write(block)
            # a read of a block takes the end of the connection for the end of the answer
            if answer.length:
                raise IncompleteRead(b"", answer.length)
        except (OSError, HTTPException) as error:
            self.close()
            if isinstance(error, OSError) and is_full(error):
                remove(target)
                raise
            raise Unreachable("the %s was cut off: %s" % (what, error)) from error


class ServerChannel:
    """`post` is called on another thread with each new instruction, each order for stacks, and the
    loss of the worker. `control_path` is the launcher's socket, which sessions use."""

    def __init__(
        self,
        new_server: Callable[[], ServerClient],
        signs_of_life: Callable[[], int],
        control_path: str,
        post: Callable[[AgentEvent], None],
    ) -> None:
        self._new_server = new_server
        self._signs_of_life = signs_of_life
        self._post = post
        self._control_path = control_path
        self._state = "preparing"
        self._quiet: Dict[str, float] = {}
        self._sent = (self._state, self._quiet)
        self._changed = threading.Event()
        self._known = "wait"
        self._stacks = ""
        self.answered_at = time.monotonic()
        """The server last answered."""

    def claim(self) -> None:
        """Become the owner of the worker; touch nothing of the job before. Raises
        Replaced; Unreachable: try again.
        """
        with closing(self._new_server()) as server:
            try:
                server.put_state(self._state, 0, "", 0.0, "", {})
            except Rejected as rejected:
                raise (Replaced if rejected.status == CONFLICT else Unreachable)(
                    str(rejected)
                ) from rejected

    def start(self) -> None:
        for run in (self._send_states, self._wait_for_instructions):
            AgentThread(run.__name__, run).start()

    def send_state(self, state: str) -> None:
        """Send it now or as soon as the server answers."""
        self._state = state
        self._changed.set()

    def send_quiet(self, ranks: Dict[str, float]) -> None:
        """Send the quiet ranks with the state, now or as soon as the server answers."""
        self._quiet = ranks
        self._changed.set()

    def deliver(self, report: "Report", results: List[str], given_up: Callable[[], bool]) -> bool:
        """Send results, then the report; False: given up, or the server rejects the report."""
        server = self._new_server()
        for path in results:
            self._insist(lambda: server.put_result(path), given_up)  # noqa: B023  # called at once
        return self._insist(lambda: server.put_json("/report", report), given_up)

    def send_stacks(self, processes: "List[ProcessReport]") -> None:
        """Send the ordered stacks in a thread. A failed send is not repeated: the
        server waits only for seconds.
        """
        mark = self._stacks

        def send() -> None:
            try:
                with closing(self._new_server()) as server:
                    server.put_json("/stacks", {"mark": mark, "processes": processes})
            except (Rejected, Unreachable) as error:
                warn("the stacks could not be sent: %s" % error)

        threading.Thread(target=send, daemon=True).start()

    def _insist(self, call: Callable[[], None], given_up: Callable[[], bool]) -> bool:
        backoff = Backoff()
        while not given_up():
            try:
                call()
                self.answered_at = time.monotonic()
                return True
            except Rejected as rejected:
                warn("the server rejects what is left: %s" % rejected)
                return False
            except Unreachable as error:
                warn("what is left waits for the server: %s" % error)
                backoff.sleep()
        return False

    def _send_states(self) -> None:
        server = self._new_server()
        backoff = Backoff()
        while True:
            state = self._state
            quiet = self._quiet
            if (state, quiet) == self._sent:
                self._changed.wait()
                self._changed.clear()
            elif self._exchange(server, state, 0.0):
                self._sent = (state, quiet)
                backoff.reset()
            else:
                backoff.sleep()

    def _wait_for_instructions(self) -> None:
        server = self._new_server()
        backoff = Backoff()
        while True:
            known = (self._known, self._stacks)
            began = time.monotonic()
            answered = self._exchange(server, self._state, WAIT_S)
            if answered and (
                (self._known, self._stacks) != known or time.monotonic() - began > _SOON_S
            ):
                backoff.reset()
            else:  # a server that shuts down answers at once, without news
                backoff.sleep()

    def _exchange(self, server: ServerClient, state: str, wait_s: float) -> bool:
        """False: there was no answer."""
        try:
            life = self._signs_of_life()
            instruction = server.put_state(
                state, life, self._known, wait_s, self._stacks, self._quiet
            )
        except Unreachable:
            return False
        except Rejected as rejected:
            if rejected.status == CONFLICT:
                self._post(Instruction(LEAVE))
            elif rejected.status == _UNAUTHORIZED:
                # the attempt was closed: the server expects nothing of this worker
                self._post(Instruction(control.EXIT))
            return False
        self.answered_at = time.monotonic()
        if wait_s and instruction.stacks not in (None, self._stacks):
            self._stacks = instruction.stacks or ""
            self._post(Instruction(control.STACKS))
        if instruction.session is not None:
            arguments = (self._new_server, instruction.session, self._control_path)
            threading.Thread(target=_carry_session, args=arguments, daemon=True).start()
        if wait_s and instruction.do != self._known:
            self._known = instruction.do
            self._post(instruction)
        return True


# --- sessions: two streams of bytes between the server and the launcher of this pod, unread


def _carry_session(new_server: Callable[[], ServerClient], mark: str, control_path: str) -> None:
    """Take up the session with this mark, and return at its end, which may be
    an error of any connection.
    """
    lost = suppress(OSError, RequestFailed, HTTPException)
    with closing(new_server()) as down, closing(new_server()) as up, lost:
        sent = 0

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

        def pass_on(peer: socket.socket) -> None:
            with suppress(OSError, HTTPException, ValueError):  # as at the end
                for data in iter(lambda: from_user.read1(frames.BLOCK), b""):
                    peer.sendall(data)
                peer.shutdown(socket.SHUT_RDWR)

        from_user = down.call("GET", "/sessions/" + mark, wait_s=frames.SILENT_S)
        request = json.loads(from_user.readline())
        try:
            with control.connect(control_path) as peer:
                control.begin_session(peer, request)
                threading.Thread(target=pass_on, args=(peer,), daemon=True).start()
                try:
                    for data in iter(lambda: peer.recv(frames.BLOCK), b""):
                        send(data)
                finally:
                    with suppress(OSError):
                        peer.shutdown(socket.SHUT_RDWR)  # `close` alone waits for the other thread
        except OSError as error:
            send(frames.json_frame(frames.EXITED, {"error": str(error)}))
        send(b"")
