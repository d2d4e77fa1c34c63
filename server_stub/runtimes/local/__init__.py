"""The local runtime: attempts as process groups of this machine that outlive the server.

Only the application that builds a server imports this; the service knows the Runtime protocol alone.

    runtime    the actor: queue, devices and gangs put together behind the Runtime protocol
    gang       one attempt that runs: all of its launchers, started all or none
    launcher   one worker launcher: spawned or found again, spoken to over its control socket
    plan, request, notices, admission     pure: what to start, what it needs, what means nothing here, who goes first
    gpus, ports, processes, machine, conda    one kind of look at this machine each
"""

from server_stub.runtimes.local.options import LocalOptions
from server_stub.runtimes.local.runtime import LocalRuntime

__all__ = ["LocalOptions", "LocalRuntime"]
