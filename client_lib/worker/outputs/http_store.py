"""Keeps outputs of a remote worker on the server, over HTTP.

    PUT <url>/<path>?offset=N&size=S&sha256=H&mtime=T&executable=0
        body: the bytes from N on; empty: asks for `length`
        -> {"length": n}: number of these bytes that the server has; S: the file is kept; 0 after
        the last byte: the digest did not match, and the upload starts from the beginning
    PUT <url>/<path>?size=S&left_out=WHY
    DELETE <url>/<path>

Every request may be repeated. An unreachable server is retried, and an upload resumed, until the
deadline of the scan.
"""

import os
import time
from typing import Any, Callable, Mapping, Optional, TypeVar
from urllib.parse import quote, urlencode

from client_lib.launcher_protocol.output_store import BLOCK, BeingWritten, SourceFile
from client_lib.worker.server_connection import Rejected, RequestFailed, ServerConnection

_PIECE = 8 * BLOCK  # one request; servers bound these
# more than other requests take: the server writes the piece to its disk before it answers
_WAIT_S = 40.0
_PAUSE_S = 1.0
_NO_ROOM = 507

T = TypeVar("T")


class HttpStore:
    """Has the methods of DirectoryStore that a scan calls."""

    def __init__(
        self,
        url: str,
        token: Optional[str],
        ca: Optional[str],
        check_time: Callable[[], None] = lambda: None,
    ) -> None:
        """`url` has no slash at its end; `token`, `ca`: files. `check_time` raises
        before a try, to end the scan.
        """
        self._check_time = check_time
        headers = {"X-Pod-Uid": os.environ.get("CLIENT_LIB_POD_UID", "")}
        if token is not None:
            with open(token, encoding="ascii") as file:
                headers["Authorization"] = "Bearer " + file.read().strip()
        self._server = ServerConnection(url, ca, headers)

    def keep(self, source: SourceFile) -> None:
        query = {
            "size": source.size,
            "sha256": source.sha256(),
            "mtime": source.status.st_mtime,
            "executable": int(source.executable),
        }
        have = self._send(source.path, {**query, "offset": 0}, b"")
        while have < source.size:
            before = have
            piece = os.pread(source.fd, min(_PIECE, source.size - have), have)
            have = self._send(source.path, {**query, "offset": have}, piece) if piece else 0
            if (
                have <= before
                # the file is shorter now, or the bytes are of another version than the announced
                # digest
            ):
                raise BeingWritten(source.path)

    def leave_out(self, path: str, size: int, why: str) -> None:
        self._ask("PUT", path, {"size": size, "left_out": why}, b"", dict)

    def forget(self, path: str) -> None:
        self._ask("DELETE", path, {}, b"", dict)

    def _send(self, path: str, query: Mapping[str, object], piece: bytes) -> int:
        """Number of bytes that the server has. The server skips bytes of the piece that it had
        before."""
        return self._ask("PUT", path, query, piece, lambda answer: int(answer["length"]))

    def _ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, object],
        body: bytes,
        read: Callable[[Any], T],
    ) -> T:
        """The answer as `read` takes it, retried until the deadline of the scan. Raises OSError
        with the reason of a server that rejects the request, or has no room."""
        target = "/%s?%s" % (quote(path), urlencode(query))
        while True:
            self._check_time()
            try:
                return self._server.exchange(method, target, body, read, _WAIT_S)
            except RequestFailed as error:
                if isinstance(error, Rejected) or error.status == _NO_ROOM:
                    raise OSError(str(error)) from error
                time.sleep(_PAUSE_S)
