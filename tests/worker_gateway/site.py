"""`python -m server_stub`, with pods that are processes of this machine (pods_here). Stands before the server's own
command line, as `unshare` would: python -m tests.worker_gateway.site python -m server_stub --state-dir …
"""

from __future__ import annotations

import sys

from server_stub import __main__ as server
from server_stub import serve
from server_stub.worker_gateway import sessions
from tests.worker_gateway.pods_here import PodsHere

ROOM_S = 1.0  # tests wait for it

if __name__ == "__main__":
    serve._runtime = lambda settings, registry, *_: PodsHere(settings, registry)
    sessions.ROOM_S = ROOM_S
    del sys.argv[1:4]  # python -m server_stub
    sys.exit(server.main(sys.argv[1:]))
