"""Every path, header and content type of `/api/v1`, and the framed log stream between the server
and a follower.

`GET /jobs/{name}/logs` with `Accept: application/vnd.client-lib.log-frames` answers a chunked body
of frames. Each frame is one ASCII header line, and `@log` frames carry `size` bytes of records
after it:

    @log <attempt> <worker> <next_offset> <size>\\n<size bytes: whole records>
    @state {"state": …, "reason": …, "message": …, "attempt": …}\\n
                          the first frame, and (follow) one whenever a field changes. The first has
                          a `cursor`, too, where tail or since skipped something
    @gap <attempt> <worker> <lines>\\n
                          so many lines of the log are gone (its size limit, or a lost machine)
    @ping\\n              nothing happened for 15 s
    @end {"state": …, …}\\n
                          the last frame: all lines were sent (follow: and the job is final). A body
                          without this frame was interrupted: resume.

`client_lib.launcher_protocol.record` describes the records.
`next_offset` is where to go on in that worker's log after this frame, filtered-out lines included;
the newest one of each (attempt, worker) is the cursor: `1.0:1234,1.1:532`. A reader that reconnects
with its cursor loses and repeats no line; it leaves out tail and since then, which would skip lines
that came meanwhile.

Standard library only: the fast reads of the command line share it.
"""

import ipaddress
import re
from collections.abc import Mapping
from typing import Literal
from urllib.parse import quote

from client_lib.errors import InvalidRequest

API = "/api/v1"
JOBS = f"{API}/jobs"
GROUPS = f"{API}/groups"
CHANGES = f"{API}/changes"
RENDER = f"{API}/render"
INFO = f"{API}/info"
DOCTOR = f"{API}/doctor"
INSTANCE_TYPES = f"{API}/instance-types"
LOGIN = f"{API}/login"
"""Tells how a user gets a token; needs none itself."""
LOGIN_LINKS = f"{API}/login-links"
SNAPSHOTS = f"{API}/snapshots"
HEALTHZ = "/healthz"
READYZ = "/readyz"
METRICS = "/metrics"
PING = "/ping"
"""`HEALTHZ`, by the name that clients of ML Space ask for."""
DISCOVERY = "/.well-known/openid-configuration"
"""The metadata of an OpenID Connect issuer, below its URL."""

IDEMPOTENCY_KEY = "Idempotency-Key"
LOG_FRAMES = "application/vnd.client-lib.log-frames"
NDJSON = "application/x-ndjson"
RESULT = "application/vnd.client-lib.result"  # see client_lib.worker.function_runner

WORKERS = f"{JOBS}/{{name}}/attempts/{{attempt}}/workers/{{worker}}"
"""Endpoints of workers on other machines (pods);
`client_lib.worker.pod.server_channel` calls them.
"""
POD_UID = "X-Pod-Uid"
POD_NAME = "X-Pod-Name"
POD_START = "X-Pod-Start"
WORKER_PROTOCOL = "X-Worker-Protocol"

NO_SUCH_PATH = "there is nothing at"
"""Beginning of the message of a server that does not know a path, as an older server does not know
a newer path.
"""

JobPart = Literal[
    "cancel",
    "checkpoints",
    "checkpoints/archive",
    "checkpoints/prune",
    "events",
    "goodput",
    "logs",
    "manifest",
    "metrics",
    "outputs",
    "provenance",
    "request",
    "stacks",
]


def job(name: str, part: JobPart | None = None) -> str:
    """Path of a job or a part of it. `request`: as it was stored, without secrets; its
    owner may submit it again.
    """
    path = f"{JOBS}/{quote(name, safe='', errors='surrogateescape')}"
    return f"{path}/{part}" if part else path


def group(name: str, part: Literal["cancel", "resubmit"] | None = None) -> str:
    path = f"{GROUPS}/{quote(name, safe='', errors='surrogateescape')}"
    return f"{path}/{part}" if part else path


def job_session(name: str, session: str) -> str:
    return f"{job(name)}/sessions/{session}"


def job_result(name: str, rank: int) -> str:
    return f"{job(name)}/results/{rank}"


def job_output(name: str, path: str) -> str:
    """`path` is relative, with slashes."""
    return f"{job(name, 'outputs')}/{quote(path)}"


def worker(name: str, attempt: int, number: int) -> str:
    """Path of a worker; its operations are `/state`, `/log`, `/report`, `/stacks`, `/snapshot`,
    `/function`, `/results/{rank}` and `/sessions/{mark}`."""
    return f"{job(name)}/attempts/{attempt}/workers/{number}"


def is_of_workers(path: str) -> bool:
    """True for paths of workers, where the token of an attempt is needed instead of a user's."""
    return path.startswith(f"{JOBS}/") and path[len(JOBS) + 1 :].partition("/")[2].startswith(
        "attempts/"
    )


def is_loopback(host: str) -> bool:
    """This machine by its address, or `localhost`; other names may mean
    another machine tomorrow.
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def snapshot(sha256: str) -> str:
    return f"{SNAPSHOTS}/{sha256}"


# --- the log stream

Position = tuple[int, int]  # (attempt, worker)

HEARTBEAT_S = 15.0
_CURSOR = re.compile(r"([0-9]{1,9})\.([0-9]{1,9}):([0-9]{1,18})")


def format_cursor(offsets: Mapping[Position, int]) -> str:
    return ",".join(
        f"{attempt}.{worker}:{offset}" for (attempt, worker), offset in sorted(offsets.items())
    )


def parse_cursor(text: str) -> dict[Position, int]:
    """Raises InvalidRequest, which names the part that is not `attempt.worker:offset`."""
    offsets: dict[Position, int] = {}
    for part in filter(None, text.split(",")):
        match = _CURSOR.fullmatch(part)
        if not match:
            what = f"cursor part {part!r} is not attempt.worker:offset"
            raise InvalidRequest(what, hint="pass the cursor as an earlier answer gave it, or none")
        attempt, worker, offset = map(int, match.groups())
        offsets[attempt, worker] = offset
    return offsets
