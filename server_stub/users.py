"""Who asks: what the authentication found and the service decides by. Tokens are read in `server_stub.auth`."""

from __future__ import annotations

from dataclasses import dataclass

ALL_OWNERS = "*"
"""As `owner` of a list: everybody's jobs, where the user may see them."""


@dataclass(frozen=True)
class User:
    """A user that a token belongs to."""

    name: str
    admin: bool = False
    """Sees and acts on the jobs of all."""
