"""Takes the progress and the metrics that libraries post. The caller's `sink` gets them as lines of
`record.metric_lines`.
"""

import contextlib
import json
import os
import re
import socket
from typing import Callable, Dict, List

from client_lib.durable import write_file
from client_lib.launcher_protocol.directory import Directory
from client_lib.launcher_protocol.plan import TRAINER_STATUS, WorkerPlan
from client_lib.launcher_protocol.rank_processes import Process
from client_lib.launcher_protocol.record import metric_lines, numbers
from client_lib.worker.loop import Loop

_REQUEST_MAX = 2**18
"""Bytes of one request."""
_OPEN_MAX = 16
"""Most connections at a time."""
_OPEN_S = 5.0
"""Longest time of a connection."""
_AGAIN_S = 1.0
"""Pause after a connection for which no file descriptor was free."""
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d{1,9})\r\n", re.IGNORECASE)
_NO_METRIC = re.compile(r"total_(?:steps|flos)|(?:current_)?epoch|.*(?:_runtime|_per_second)")
_AUTHORITIES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
)


def offer_status(
    plan: WorkerPlan,
    ranks: List[Process],
    loop: Loop,
    directory: Directory,
    sink: Callable[[bytes], None],
) -> None:
    """Give the ranks an address for their status, unless their environment has one, or names a
    proxy to which they would post. Raises OSError.
    """
    if not {*TRAINER_STATUS, "http_proxy", "HTTP_PROXY"}.isdisjoint(ranks[0].environment):
        return
    status = TrainerStatus(
        loop, directory.status_token, plan.worker * plan.processes_per_worker, sink
    )
    for process in ranks:
        process.environment.update(
            {name: value for name, value in status.variables.items() if value}
        )


class TrainerStatus:
    """Takes progress and metrics that libraries post by Kubeflow Trainer's status protocol
    (KEP-2779). One per worker.

    Trainer of Hugging Face (5.23 or newer) and `update_trainjob_status` of kubeflow's SDK find the
    address in variables and post at most every 5 s. The launcher listens on loopback, without a
    thread or a process.
    """

    def __init__(
        self, loop: Loop, token_file: str, rank: int, sink: Callable[[bytes], None]
    ) -> None:
        """`rank`: the first rank of this worker; all values count as its values. Raises OSError."""
        self._loop = loop
        self._rank = rank
        self._sink = sink
        self._token = os.urandom(16).hex()
        write_file(token_file, self._token.encode())
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self._socket.listen(_OPEN_MAX)
        self._socket.setblocking(False)
        self._open: Dict[socket.socket, bytes] = {}  # bytes received so far
        # some clients read the file of authorities for an address with http, too
        authorities = next(filter(os.path.exists, _AUTHORITIES), "")
        url = "http://127.0.0.1:%d/" % self._socket.getsockname()[1]
        self.variables = dict(zip(TRAINER_STATUS, (url, token_file, authorities)))  # noqa: B905  # Python 3.8
        self._listen()

    def _listen(self) -> None:
        self._loop.watch(self._socket.fileno(), self._accept)

    def _accept(self) -> None:
        try:
            peer, _ = self._socket.accept()
        # no descriptor is free: the socket stays readable, and would keep the loop busy
        except OSError:
            self._loop.forget(self._socket.fileno())
            self._loop.call_later(_AGAIN_S, self._listen)
            return
        if len(self._open) >= _OPEN_MAX:
            peer.close()
            return
        peer.setblocking(False)
        self._open[peer] = b""
        self._loop.watch(peer.fileno(), lambda: self._read(peer))
        self._loop.call_later(_OPEN_S, lambda: self._close(peer))

    def _read(self, peer: socket.socket) -> None:
        block = b""
        with contextlib.suppress(OSError):
            block = peer.recv(65536)
        data = self._open[peer] = self._open[peer] + block
        head, end, body = data.partition(b"\r\n\r\n")
        length = _LENGTH.search(head + b"\r\n")
        if end and length and len(body) >= int(length[1]):
            status = self._take(head, body)
            with contextlib.suppress(OSError):
                peer.send(b"HTTP/1.1 %s\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" % status)
        elif block and len(data) <= _REQUEST_MAX and (length or not end):
            return
        self._close(peer)

    def _close(self, peer: socket.socket) -> None:
        if self._open.pop(peer, None) is not None:
            self._loop.forget(peer.fileno())
            peer.close()

    def _take(self, head: bytes, body: bytes) -> bytes:
        """Pass the values of a request on; returns the status of the answer."""
        if b"bearer %s\r\n" % self._token.encode() not in head.lower() + b"\r\n":
            return b"401 Unauthorized"
        try:
            status = json.loads(body)["trainerStatus"]
            values = numbers(
                (str(metric["name"]), metric["value"]) for metric in status.get("metrics") or []
            )
            step = values.pop("current_step", None)
            values = {
                name: value for name, value in values.items() if not _NO_METRIC.fullmatch(name)
            }
            posted = [status.get("progressPercentage"), status.get("estimatedRemainingSeconds")]
            lines = metric_lines(
                self._rank, step, values, 0, [None if n is None else float(n) for n in posted]
            )
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            return b"422 Unprocessable Entity"
        self._sink(b"".join(lines))
        return b"200 OK"
