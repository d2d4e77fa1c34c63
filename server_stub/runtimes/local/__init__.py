"""The local runtime: attempts as process groups of this machine that outlive the server.

runtime     the queue and the running gangs, as a Runtime
host        this machine as a place for jobs: free resources, and the meaning of a request here
gang        one running attempt: all of its launchers, started all or none
launcher    one worker launcher: started or found again, controlled over its socket, killed with all
            that the worker left
warm        the processes from which ranks are forked, which start in a quarter of the time
checkpoints the files of a job's checkpoints, read and removed with the rights of the job
accounts    the accounts under which jobs of users run, and their folders
scheduling  the needs of an attempt, and the decisions about the queue; pure
plan        the plans of an attempt's workers; pure
machine     this machine: cores, memory, GPUs, ports
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from server_stub.settings import Settings


@dataclass(frozen=True)
class LocalOptions:
    """The server's settings, and the programs of this machine that the runtime starts. The runtime
    reads no environment and no file of settings itself."""

    settings: Settings
    nvidia_smi: str = "nvidia-smi"
    """Program that lists the GPUs, looked for on PATH. A machine without the program has no
    GPUs."""
    python: str = sys.executable
    """Interpreter of the worker launchers, which need the standard library only, and
    of requests that name none.
    """
    accounts: Callable[[], Mapping[str, str]] | None = None
    """Returns the name of the account under which a user's jobs run; None: all jobs run under the
    server's account.
    """

    @property
    def warm(self) -> bool:
        """Warm pools may be used: their processes belong to the server's account."""
        return self.settings.warm and self.accounts is None
