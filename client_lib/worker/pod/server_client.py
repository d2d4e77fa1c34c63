"""Calls of the server's worker routes."""

import http.client
import json
import os
from typing import Any, Callable, List, Mapping, NamedTuple, Optional, Tuple, TypeVar
from urllib.parse import quote, urlencode

from client_lib.worker.disk import is_full
from client_lib.worker.pod.settings import PodSettings
from client_lib.worker.server_connection import Body, ServerConnection, Unreachable

_BLOCK = 256 * 1024

T = TypeVar("T")


class Instruction(NamedTuple):
    """Next step of the worker: wait, go, stop or exit."""

    do: str
    grace_s: Optional[float] = None
    stacks: Optional[str] = None
    """Mark of an order to send the stacks of the ranks, beside `do`."""
    session: Optional[str] = None
    """Mark of a session of the user to take up, beside `do`."""


def worker_path(pod: PodSettings) -> str:
    """The same path as client_lib.spec.paths.worker."""
    return "/api/v1/jobs/%s/attempts/%d/workers/%d" % (quote(pod.job, safe=""), pod.attempt, pod.worker)


def outputs_url(pod: PodSettings) -> Optional[str]:
    """URL at which the server takes this worker's outputs; None: there is no server."""
    return None if pod.server_url is None else pod.server_url.rstrip("/") + worker_path(pod) + "/outputs"


class ServerClient(ServerConnection):
    """The requests of a pod. Each may be repeated, and raises Unreachable or Rejected."""

    def __init__(self, pod: PodSettings, token: str, ca_file: Optional[str]) -> None:
        assert pod.server_url is not None
        headers = {
            "Authorization": "Bearer " + token,
            "X-Pod-Uid": pod.uid,
            "X-Pod-Name": pod.name,
            "X-Pod-Start": pod.start,
        }
        super().__init__(pod.server_url.rstrip("/") + worker_path(pod), ca_file, headers)

    def put_state(
        self,
        state: str,
        signs_of_life: int,
        known: str,
        wait_s: float,
        stacks: str = "",
        quiet: Optional[Mapping[str, float]] = None,
    ) -> Instruction:
        """Send the worker's state. Returns its instruction as soon as that is not `known`, or orders other stacks than
        those with the mark `stacks`; at the latest after `wait_s`."""
        says = {"state": state, "signs_of_life": signs_of_life, "stacks": stacks, "quiet": quiet or {}}
        says["sessions"] = True
        body = json.dumps(says).encode()
        query = {"knows": known, "wait": "%g" % wait_s}
        return self._put("/state?" + urlencode(query), body, _instruction, wait_s)

    def put_log(self, offset: int, records: bytes, gap: bool) -> Tuple[int, int]:
        """(length, durable) of the log that the server has stored."""
        query = {"offset": str(offset)}
        if gap:
            query["gap"] = "1"
        return self._put("/log?" + urlencode(query), records, lambda lengths: _numbers(lengths, "length", "durable"))

    def log_end(self) -> Tuple[int, int]:
        """(offset, seq) of the record that the server expects next."""
        return self._put("/log?offset=0", b"", lambda lengths: _numbers(lengths, "length", "next_seq"))

    def put_report(self, report: Mapping[str, Any]) -> None:
        self._put("/report", json.dumps(report).encode(), lambda _: None)

    def put_stacks(self, mark: str, processes: List[Any]) -> None:
        self._put("/stacks", json.dumps({"mark": mark, "processes": processes}).encode(), lambda _: None)

    def put_session(self, mark: str, offset: int, data: bytes) -> None:
        """Send bytes to the user of a session; none: the session has ended."""
        self._put("/sessions/%s?offset=%d" % (mark, offset), data, lambda _: None)

    def put_result(self, path: str) -> None:
        """The file of one rank, named by its number."""
        with open(path, "rb") as file:
            self._put("/results/" + os.path.basename(path), file, lambda _: None)

    def fetch(self, what: str, target: str, check_stop: Callable[[], None]) -> None:
        """Write the snapshot or the function (`what`) to a file. `check_stop` is called for each block; an exception
        that it raises ends the transfer. Raises OSError if the disk is full."""
        answer = self.call("GET", "/" + what)
        try:
            with open(target, "wb") as file:
                while True:
                    check_stop()
                    block = answer.read(_BLOCK)
                    if not block:
                        break
                    file.write(block)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            if isinstance(error, OSError) and is_full(error):
                os.unlink(target)
                raise
            raise Unreachable("the %s was cut off: %s" % (what, error)) from error

    def _put(self, path: str, body: Body, read: Callable[[Any], T], wait_s: float = 0.0) -> T:
        return self.exchange("PUT", path, body, read, wait_s)


def _instruction(answer: Any) -> Instruction:
    do, grace_s = str(answer["do"]), answer.get("grace_s")
    return Instruction(do, None if grace_s is None else float(grace_s), answer.get("stacks"), answer.get("session"))


def _numbers(answer: Any, first: str, second: str) -> Tuple[int, int]:
    return int(answer[first]), int(answer[second])
