"""The framed log stream between the server and a follower. Standard library only.

`GET /jobs/{name}/logs` with `Accept: application/vnd.client-lib.log-frames` answers a chunked body of frames. Each
frame is one ASCII header line, and `@log` frames carry `size` bytes of records after it:

    @log <attempt> <worker> <next_offset> <size>\\n<size bytes: whole records, see client_lib.worker.format>
    @state {"state": …, "reason": …, "message": …, "attempt": …}\\n   first, and whenever one of them changes (follow)
                                            the first has a `cursor`, too, where tail or since skipped something
    @gap <attempt> <worker> <lines>\\n      so many lines of the log are gone (its size limit, or a lost machine)
    @ping\\n                                nothing happened for 15 s
    @end {"state": …, …}\\n                 the last frame: every line is out (follow: and the job is final). A body
                                            without it was cut: resume.

`next_offset` is where to go on in that worker's log after this frame, filtered-out lines included; the newest one of
each (attempt, worker) is the cursor: `1.0:1234,1.1:532`. A reader that reconnects with its cursor loses and repeats no
line; it leaves out tail and since then, which would skip lines that came meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

Position = tuple[int, int]  # (attempt, worker)

HEARTBEAT_S = 15.0
_CURSOR = re.compile(r"([0-9]{1,9})\.([0-9]{1,9}):([0-9]{1,18})")


def format_cursor(offsets: Mapping[Position, int]) -> str:
    return ",".join(f"{attempt}.{worker}:{offset}" for (attempt, worker), offset in sorted(offsets.items()))


def parse_cursor(text: str) -> dict[Position, int]:
    """Raises ValueError naming the part that is not `attempt.worker:offset`."""
    offsets: dict[Position, int] = {}
    for part in filter(None, text.split(",")):
        match = _CURSOR.fullmatch(part)
        if not match:
            raise ValueError(f"cursor part {part!r} is not attempt.worker:offset")
        attempt, worker, offset = map(int, match.groups())
        offsets[attempt, worker] = offset
    return offsets
