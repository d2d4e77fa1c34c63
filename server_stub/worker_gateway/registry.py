"""Registry of the open attempts whose workers run on other machines, and the tokens of these workers.

Runtimes open, read and close attempts; `server_stub.http.api.workers` finds them by their tokens. Event loop only.

A token names its attempt and is signed with a key of this server. Nothing is stored per token, so a token survives a
restart.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from client_lib.errors import Unauthorized, Unavailable
from client_lib.worker.directory import write_file
from server_stub.files.room import Spare
from server_stub.worker_gateway.attempt import OpenAttempt, expired_token, is_attempt_open
from server_stub.worker_gateway.views import WorkerGroup

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
        key = self._read_key()
        if key is None:
            key = self._key = secrets.token_bytes(_KEY_BYTES)
            write_file(str(self._file), key, durable=True)
        return f"{PREFIX}{holder.job_id}.{holder.attempt}.{self._proof(holder, key)}"

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


def _unknown() -> Unauthorized:
    return Unauthorized("the server does not know this worker's token")


class WorkerRegistry:
    """One per server. `folder_of` maps (job id, attempt) to the attempt's folder; `key_file` is created (0600) with the
    first token; `spare` gives up room for states and reports on a full disk."""

    def __init__(self, key_file: Path, folder_of: Callable[[str, int], Path], spare: Spare) -> None:
        self._tokens = Tokens(key_file)
        self._folder_of, self._spare = folder_of, spare
        self._open: dict[Holder, OpenAttempt] = {}

    # --- for the runtime

    def token(self, job_id: str, attempt: int) -> str:
        """The token of the workers of an attempt; always the same. It is valid from `open` to `close`."""
        return self._tokens.make(Holder(job_id, attempt))

    def open(self, group: WorkerGroup, on_change: Callable[[], None]) -> None:
        """Accept the workers of an attempt, with the state that earlier server processes have stored. Idempotent.
        Reads small files.

        `on_change` is called on the event loop's thread when the `change_key` of a view has changed.
        """
        holder = Holder(group.job_id, group.attempt)
        if holder not in self._open:
            attempt = OpenAttempt(group, on_change, self._spare)
            attempt.open()
            self._open[holder] = attempt

    def find(self, job_id: str, attempt: int) -> OpenAttempt | None:
        """None: it is not open."""
        return self._open.get(Holder(job_id, attempt))

    def close(self, job_id: str, attempt: int) -> None:
        """End an attempt: its token expires, its files stay."""
        if found := self._open.pop(Holder(job_id, attempt), None):
            found.close()

    # --- for the workers

    def admit(self, token: str) -> OpenAttempt:
        """The attempt of a token.

        Raises:
            Unauthorized: this server has not issued the token, or its attempt is over.
            Unavailable: this server process has not opened the attempt yet.
        """
        holder = self._tokens.check(token)
        found = self._open.get(holder)
        if found is None:
            if is_attempt_open(self._folder_of(*holder)):
                raise Unavailable("the server has just been started and does not follow this attempt yet")
            raise expired_token()
        return found
