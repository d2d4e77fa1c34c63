"""skeleton"""

from __future__ import annotations

from server_stub.runtimes.local.options import LocalOptions


class LocalRuntime:
    """Runs attempts as processes of this machine. See server_stub.runtimes.Runtime for the promises."""

    name = "local"

    def __init__(self, options: LocalOptions) -> None:
        self._options = options
