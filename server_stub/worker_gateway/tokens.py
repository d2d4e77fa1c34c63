"""Tokens for the workers of an attempt. A token names its attempt and is signed with a key of this server.

Nothing is stored per token, so a token survives a restart. The registry decides if it is valid.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from pathlib import Path
from typing import NamedTuple

from client_lib.errors import Unauthorized

PREFIX = "clw_"  # lets scanners recognise a leaked token
_KEY_BYTES = 32


class Holder(NamedTuple):
    """The attempt that a token belongs to."""

    job_id: str
    attempt: int


class Tokens:
    """Makes and checks tokens with the key in a file, which is created (0600) with the first token."""

    def __init__(self, key_file: Path) -> None:
        self._file = key_file
        self._key: bytes | None = None

    def make(self, holder: Holder) -> str:
        """The token of this holder; always the same."""
        return f"{PREFIX}{holder.job_id}.{holder.attempt}.{self._proof(holder, self._made_key())}"

    def check(self, token: str) -> Holder:
        """The holder of a token. Raises Unauthorized for a token that this server has not made."""
        job_id, attempt, proof = [*token.removeprefix(PREFIX).rsplit(".", 2), "", ""][:3]
        key = self._read_key()
        if key is None or not (attempt.isascii() and attempt.isdigit() and len(attempt) < 10):
            raise _unknown()
        holder = Holder(job_id, int(attempt))
        if not hmac.compare_digest(self._proof(holder, key).encode(), proof.encode()):
            raise _unknown()
        return holder

    def _proof(self, holder: Holder, key: bytes) -> str:
        return hmac.new(key, f"{holder.job_id}\n{holder.attempt}".encode(), hashlib.sha256).hexdigest()

    def _read_key(self) -> bytes | None:
        if self._key is None and self._file.exists():
            self._key = self._file.read_bytes()
        return self._key

    def _made_key(self) -> bytes:
        key = self._read_key()
        if key is None:
            key = self._key = secrets.token_bytes(_KEY_BYTES)
            new = self._file.with_name(self._file.name + ".new")
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(key)
                file.flush()
                os.fsync(descriptor)
            os.replace(new, self._file)
        return key


def _unknown() -> Unauthorized:
    return Unauthorized("the server does not know this worker's token")
