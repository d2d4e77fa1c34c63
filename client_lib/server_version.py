"""Will a local server of another version do? A newer client asks, on a terminal, before it replaces an older server,
and never under running jobs; without a terminal it uses the old one and says so. Only `api` uses this.
"""

from __future__ import annotations

import http.client
import json
import logging
import re
import sys
from typing import Literal
from urllib.parse import urlsplit

from client_lib import __version__, local_server
from client_lib.local_server import Running
from client_lib.spec import paths
from client_lib.spec.states import State

_log = logging.getLogger("client_lib")
_said: set[tuple[str, int]] = set()  # servers that were spoken of already: once per process is enough

Decision = Literal["use", "ask", "warn"]


def decide(server: str, client: str, busy: bool, terminal: bool) -> Decision:
    """What to do with a server of version `server`. A newer one and an equal one are used as they are."""
    if _ordered(server) >= _ordered(client):
        return "use"
    return "ask" if terminal and not busy else "warn"


def settle(running: Running) -> Running:
    """The server to use: `running`, or the one that took its place because the user agreed."""
    if (running.url, running.pid) in _said or _ordered(running.version) >= _ordered(__version__):
        return running
    _said.add((running.url, running.pid))
    busy = _has_jobs(running)
    terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()
    if decide(running.version, __version__, busy, terminal) == "ask" and _agreed(running):
        local_server.stop(running)
        return local_server.find_or_start(running.state_dir)
    _log.warning(
        "the local server is of version %s, older than this client (%s)%s; `client-lib server stop` ends it, the next "
        "command starts a new one",
        running.version,
        __version__,
        " and has jobs" if busy else "",
    )
    return running


def _ordered(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _agreed(running: Running) -> bool:
    sys.stderr.write(
        f"The local server is of version {running.version}, this client of {__version__}. It has no jobs. "
        "Replace it? [y/N] "
    )
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _has_jobs(running: Running) -> bool:
    """Some job isn't final. A server that can't be asked counts as one with jobs: it is left alone."""
    endpoint = running.endpoint
    connection = http.client.HTTPConnection(urlsplit(endpoint.url).netloc, timeout=5)
    try:
        for state in (State.RUNNING, State.PENDING, State.RESTARTING):
            connection.request(
                "GET", f"{paths.JOBS}?state={state}&limit=1", headers={"Authorization": f"Bearer {endpoint.token}"}
            )
            if json.loads(connection.getresponse().read())["jobs"]:
                return True
        return False
    except (OSError, http.client.HTTPException, ValueError, KeyError):
        return True
    finally:
        connection.close()
