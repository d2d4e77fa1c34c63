"""Frames of a session: a command, a terminal or a port of a running worker.

The two ends of a session exchange frames: `client_lib.worker.session` in the worker, and
`client-lib exec` at the user. A frame is its kind (one byte), the length of its data (four bytes),
and the data. Everything between the two ends passes the bytes on unread. An end that has nothing to
send sends KEEP; an end that receives nothing for SILENT_S ends the session.
"""

import json
import struct
from typing import (
    List,
    Tuple,
)

# kinds of frames
DATA = b"d"  # stdin, stdout, bytes of a port; empty: the end of stdin
ERRORS = b"e"  # stderr
WINDOW = b"w"  # JSON [rows, columns]: the size of the user's terminal
SIGNAL = b"s"  # JSON number, for the command
KEEP = b"k"
EXITED = b"x"  # the last one, JSON: {"exit_code": 3}, or {"error": "why there is none"}

KEEP_S = 15.0
SILENT_S = 60.0
BLOCK = 64 * 1024
_HEAD = struct.Struct(">cI")


# --- the frames of a session


def frame(kind: bytes, data: bytes = b"") -> bytes:
    return _HEAD.pack(kind, len(data)) + data


def json_frame(kind: bytes, content: object) -> bytes:
    return frame(kind, json.dumps(content).encode())


class Frames:
    """Collects received bytes and returns whole frames as (kind, data)."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, received: bytes) -> List[Tuple[bytes, bytes]]:
        found = []
        data = self._rest + received
        while len(data) >= _HEAD.size:
            kind, length = _HEAD.unpack_from(data)
            end = _HEAD.size + length
            if len(data) < end:
                break
            found.append((kind, data[_HEAD.size : end]))
            data = data[end:]
        self._rest = data
        return found
