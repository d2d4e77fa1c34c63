"""`python -m server_stub`, with pods that are processes of this machine (pods_here). Stands before
the server's own command line, as `unshare` would: python -m tests.worker_gateway.site python -m
server_stub --state-dir …
"""

import sys
from typing import Any

from server_stub import __main__ as server, serve
from server_stub.worker_gateway import sessions
from server_stub.worker_gateway.attempt import WorkerRegistry
from tests.worker_gateway.pods_here import PodsHere

ROOM_S = 1.0  # tests wait for it

if __name__ == "__main__":
    registries: list[WorkerRegistry] = []

    def registry(*arguments: Any) -> WorkerRegistry:
        registries.append(WorkerRegistry(*arguments))
        return registries[-1]

    # the server makes the registry before its runtime
    vars(serve).update(
        WorkerRegistry=registry,
        LocalRuntime=lambda options: PodsHere(options.settings, registries[-1]),
    )
    sessions.ROOM_S = ROOM_S
    del sys.argv[1:4]  # python -m server_stub
    sys.exit(server.main(sys.argv[1:]))
