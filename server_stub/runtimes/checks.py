"""Makes the checks of `doctor`."""

from __future__ import annotations

from client_lib.spec.wire import Check


def checked(name: str, message: str, fix: str | None = None) -> Check:
    """A check of the doctor, which has failed if there is a fix."""
    return Check(name=name, ok=fix is None, message=message, fix=fix)
