"""The local runtime: attempts as process groups of this machine that outlive the server.

Only the application that builds a server imports this; the service knows the Runtime protocol alone.

    runtime    the actor: queue, devices and gangs put together behind the Runtime protocol
    gang       one attempt that runs: all of its launchers, started all or none
    launcher   one worker launcher: spawned or found again, spoken to over its control socket
    warm, warm_pool    the processes that ranks are forked from, to start in a quarter of a second; rules: warm_rules
    needs, scheduling, plan, notices, devices     pure: what it needs, who goes first, what is started, what is
               read otherwise here, what nvidia-smi says; how an attempt ended decides `runtimes.verdict`
    gpus, ports, processes, machine, conda, volumes, record, doctor      one kind of look at this machine each
"""

import sys

from server_stub.runtimes.local.unix import require_unix

require_unix(sys.platform)

from server_stub.runtimes.local.options import LocalOptions  # noqa: E402  (what follows needs fcntl)
from server_stub.runtimes.local.runtime import LocalRuntime  # noqa: E402

__all__ = ["LocalOptions", "LocalRuntime"]
