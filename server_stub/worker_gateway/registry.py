"""Registry of the open attempts whose workers run on other machines, and the tokens of these workers.

Runtimes open, read and close attempts; `server_stub.http.api.workers` finds them by their tokens. Event loop only.

A token names its attempt and is signed with a key of this server. Nothing is stored per token, so a token survives a
restart.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from client_lib.errors import Unauthorized, Unavailable
from server_stub.files.room import Spare
from server_stub.worker_gateway.attempt import OpenAttempt, expired_token, is_attempt_open
from server_stub.worker_gateway.stacks import StackDump
from server_stub.worker_gateway.views import WorkerGroup, WorkerView

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

    def view(self, job_id: str, attempt: int) -> tuple[WorkerView, ...]:
        """All workers of an open attempt, by number; () for one that is not open."""
        found = self._open.get(Holder(job_id, attempt))
        return found.views() if found else ()

    def stop(self, job_id: str, attempt: int, grace_s: float) -> None:
        """Order the workers to stop. This reaches them before the deletion of their pods, but is not guaranteed to."""
        if found := self._open.get(Holder(job_id, attempt)):
            found.stop(grace_s)

    def release(self, job_id: str, attempt: int) -> None:
        """Let worker 0 leave at once. Otherwise it leaves when the reports and logs of all workers have arrived."""
        if found := self._open.get(Holder(job_id, attempt)):
            found.release()

    def begun(self, job_id: str, attempt: int) -> bool:
        """True if every worker was ready once and ranks have been started."""
        found = self._open.get(Holder(job_id, attempt))
        return found is not None and found.begun

    async def append(self, job_id: str, attempt: int, worker: int, pod_uid: str, records: bytes) -> int:
        """Store the new records of a pod's log that was read from the cluster, and return their number.

        Records are lines of client_lib.worker.format, compared by seq; other lines are skipped. 0 for an attempt that
        is not open and for a worker that another pod owns. Raises StorageFull.
        """
        found = self._open.get(Holder(job_id, attempt))
        return await found.append(worker, pod_uid, records) if found else 0

    async def stacks(self, job_id: str, attempt: int, limit_s: float) -> list[StackDump]:
        """Take the stacks of the workers of an attempt, by number; a problem for a worker that has not sent them
        within `limit_s`. [] for an attempt that is not open. One call at a time for each attempt."""
        found = self._open.get(Holder(job_id, attempt))
        return await found.stacks(limit_s) if found else []

    def forget(self, job_id: str, attempt: int) -> None:
        """Drop the state of all workers, so that new pods may take their places. Only after the pods are gone, and
        before any rank ran. The attempt stays open."""
        if found := self._open.get(Holder(job_id, attempt)):
            found.forget()

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
