"""Bounds the head of a request, which uvicorn's fast parser (httptools) does not.

Without it one client that never ends a header fills the memory before any of our code is asked. uvicorn's other parser,
h11, has such a bound itself.
"""

from __future__ import annotations

import asyncio
from typing import Any

HEAD_MAX = 64 * 1024  # bytes of request line and headers; nginx and h11 allow as much

_REFUSAL = b'{"code": "too_large", "message": "the headers of the request are larger than 65536 bytes"}'


def http_protocol() -> Any:
    """What uvicorn.Config takes as `http`: bounded httptools where it is installed, else h11."""
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError:  # Windows, PyPy: no wheel of httptools
        return "h11"

    class BoundedHttpTools(HttpToolsProtocol):
        """httptools with a bound on what comes before the body."""

        _head: int | None = 0
        """Bytes fed since the head began; None while a body is read."""

        def data_received(self, data: bytes) -> None:
            if self._head is not None:
                self._head += len(data)
            super().data_received(data)
            if self._head is not None and self._head > HEAD_MAX and self.transport and not self.transport.is_closing():
                _refuse(self.transport)

        def on_headers_complete(self) -> None:
            self._head = None
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            self._head = 0
            super().on_message_complete()

    return BoundedHttpTools


def _refuse(transport: asyncio.Transport) -> None:
    transport.write(
        b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\nconnection: close\r\n"
        b"content-length: %d\r\n\r\n%b" % (len(_REFUSAL), _REFUSAL)
    )
    transport.close()
