"""The token of one attempt's workers: it says itself whose it is, and a key of this server proves it. Nothing is stored
per token, so that it is the same after a restart.

Whether it opens anything is the desk's to say: it does from `open` to `close`.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from pathlib import Path
from typing import NamedTuple

from client_lib.errors import Unauthorized

PREFIX = "clw_"  # so that a token is recognised where it should not be
_KEY_BYTES = 32


class Holder(NamedTuple):
    """Whose token it is."""

    job_id: str
    attempt: int


class Tokens:
    """Makes and checks tokens with the key in a file, which is made 0600 when the first token is."""

    def __init__(self, key_file: Path) -> None:
        self._file = key_file
        self._key: bytes | None = None

    def make(self, holder: Holder) -> str:
        """Always the same for the same holder."""
        return f"{PREFIX}{holder.job_id}.{holder.attempt}.{self._proof(holder, self._made_key())}"

    def check(self, token: str) -> Holder:
        """Whose token it is.

        Raises Unauthorized: it is none that this server has made.
        """
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
