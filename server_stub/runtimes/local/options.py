"""The settings of the local runtime, as values: it reads no environment and no file of settings itself."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from server_stub.runtimes.local.accounts import UserAccounts
from server_stub.settings import Settings


@dataclass(frozen=True)
class LocalOptions:
    """The server's settings, and the programs of this machine that the runtime starts."""

    settings: Settings
    nvidia_smi: str = "nvidia-smi"
    """Program that lists the GPUs, looked for on PATH. A machine without it has none."""
    gpu_held_mib: int = 100
    """A GPU is handed out if foreign processes hold less of its memory than this (MiB)."""
    launcher_python: str = sys.executable
    """Interpreter of the worker launcher, which needs the standard library only."""
    server_python: str = sys.executable
    """Runs the scripts of requests that name no interpreter of their own."""
    accounts: UserAccounts | None = None
    """The accounts under which the jobs of users run; None: all run under that of the server."""

    @property
    def warm(self) -> bool:
        """Warm pools may be used: their processes belong to the server's account."""
        return self.settings.warm and self.accounts is None
