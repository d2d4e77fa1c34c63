"""Where the local runtime can run at all. Imported before the modules that need a Unix."""

from __future__ import annotations

from client_lib.errors import NotSupported


def require_unix(platform: str) -> None:
    """Raises NotSupported on Windows (`platform` as sys.platform has it)."""
    if platform == "win32":
        raise NotSupported(
            "the local runtime needs Linux or macOS: it relies on process groups, file locks and Unix sockets",
            hint="set CLIENT_LIB_ENDPOINT to a server on another machine, or run inside WSL",
        )
