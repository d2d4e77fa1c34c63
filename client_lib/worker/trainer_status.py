"""Takes the progress and the metrics that libraries post by the status protocol of Kubeflow Trainer (KEP-2779).

Trainer of Hugging Face (5.23 or newer) and `update_trainjob_status` of kubeflow's SDK find the address in variables and
post at most every 5 s. The launcher listens on loopback, without a thread or a process.
"""

import contextlib
import json
import os
import re
import socket
from typing import Any, Callable, Dict, List

from client_lib.worker.directory import Directory, write_file
from client_lib.worker.format import metric_lines, numbers
from client_lib.worker.loop import Loop
from client_lib.worker.plan import TRAINER_STATUS, Process, WorkerPlan

_LONGEST = 2**18  # bytes of one request
_OPEN_MAX, _OPEN_S = 16, 5.0  # connections, and how long each may take
_AGAIN_S = 1.0
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d{1,9})\r\n", re.IGNORECASE)
_NO_METRIC = re.compile(r"total_(?:steps|flos)|(?:current_)?epoch|.*(?:_runtime|_per_second)")
_AUTHORITIES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")


def offer(
    plan: WorkerPlan, ranks: List[Process], loop: Loop, directory: Directory, sink: Callable[[bytes], None]
) -> None:
    """Give the ranks an address for their status, unless they have one, or would look for it behind a proxy.

    Raises OSError.
    """
    if not {*TRAINER_STATUS, "http_proxy", "HTTP_PROXY"}.isdisjoint(ranks[0].environment):
        return
    status = _TrainerStatus(loop, directory.status_token, plan.worker * plan.processes_per_worker, sink)
    for process in ranks:
        process.environment.update({name: value for name, value in status.variables.items() if value})


class _TrainerStatus:
    """One per worker. `sink` gets lines of `metric_line`."""

    def __init__(self, loop: Loop, token_file: str, rank: int, sink: Callable[[bytes], None]) -> None:
        """`rank`: the first of this worker, to which all values belong. Raises OSError."""
        self._loop, self._rank, self._sink = loop, rank, sink
        self._token = os.urandom(16).hex()
        write_file(token_file, self._token.encode())
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self._socket.listen(_OPEN_MAX)
        self._socket.setblocking(False)
        self._open: Dict[socket.socket, bytearray] = {}
        authorities = next(filter(os.path.exists, _AUTHORITIES), "")  # for clients that read it also for http
        url = "http://127.0.0.1:%d/" % self._socket.getsockname()[1]
        self.variables = dict(zip(TRAINER_STATUS, (url, token_file, authorities)))  # noqa: B905  # Python 3.8
        self._listen()

    def _listen(self) -> None:
        self._loop.watch(self._socket.fileno(), self._accept)

    def _accept(self) -> None:
        try:
            peer, _ = self._socket.accept()
        except OSError:  # no descriptor is free: the socket stays readable, and would keep the loop busy
            self._loop.forget(self._socket.fileno())
            self._loop.call_later(_AGAIN_S, self._listen)
            return
        if len(self._open) >= _OPEN_MAX:
            peer.close()
            return
        peer.setblocking(False)
        self._open[peer] = bytearray()
        self._loop.watch(peer.fileno(), lambda: self._read(peer))
        self._loop.call_later(_OPEN_S, lambda: self._close(peer))

    def _read(self, peer: socket.socket) -> None:
        data, block = self._open[peer], b""
        with contextlib.suppress(OSError):
            block = peer.recv(65536)
        data += block
        head, end, body = bytes(data).partition(b"\r\n\r\n")
        length = _LENGTH.search(head + b"\r\n")
        if end and length and len(body) >= int(length[1]):
            status = self._take(head, body)
            with contextlib.suppress(OSError):
                peer.send(b"HTTP/1.1 %s\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" % status)
        elif block and len(data) <= _LONGEST and (length or not end):
            return
        self._close(peer)

    def _close(self, peer: socket.socket) -> None:
        if self._open.pop(peer, None) is not None:
            self._loop.forget(peer.fileno())
            peer.close()

    def _take(self, head: bytes, body: bytes) -> bytes:
        """Pass a request on; the status of its answer."""
        if b"bearer %s\r\n" % self._token.encode() not in head.lower() + b"\r\n":
            return b"401 Unauthorized"
        try:
            lines = _lines(self._rank, json.loads(body)["trainerStatus"])
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            return b"422 Unprocessable Entity"
        self._sink(lines)
        return b"200 OK"


def _lines(rank: int, status: Dict[str, Any]) -> bytes:
    """The lines of a TrainerStatus. Raises the errors that `_take` catches if it is none."""
    values = numbers((str(metric["name"]), metric["value"]) for metric in status.get("metrics") or [])
    step = values.pop("current_step", None)
    values = {name: value for name, value in values.items() if not _NO_METRIC.fullmatch(name)}
    posted = [status.get("progressPercentage"), status.get("estimatedRemainingSeconds")]
    return b"".join(metric_lines(rank, step, values, 0, [None if n is None else float(n) for n in posted]))
