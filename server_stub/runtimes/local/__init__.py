"""The local runtime: attempts as process groups of this machine that outlive the server.

runtime    the queue and the running gangs, as a Runtime
host       this machine: free resources, and the meaning of a request here
gang       one running attempt: all of its launchers, started all or none
launcher   one worker launcher: started or found again, controlled over its socket
warm, warm_pool    the processes from which ranks are forked, which start in a quarter of the time
accounts, folders   the accounts under which jobs of users run, and the folders of jobs
needs, scheduling, plan     pure
machine, ports, processes, record, doctor      read or change one aspect of this machine each
"""

from server_stub.runtimes.local.options import LocalOptions
from server_stub.runtimes.local.runtime import LocalRuntime

__all__ = ["LocalOptions", "LocalRuntime"]
