"""The desk that workers elsewhere talk to, and at which their runtime looks: every open attempt of this server.

Runtimes open, look and close; `server_stub.api.workers` brings what the workers say. Event loop only.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from client_lib.errors import Unavailable
from server_stub.workers.attempt import OpenAttempt, token_is_dead
from server_stub.workers.gate import is_open_on_disk
from server_stub.workers.tokens import Holder, Tokens
from server_stub.workers.views import Gang, WorkerView


class WorkerDesk:
    """One per server. `folder_of` (job id, attempt) is where an attempt's files are; `key_file` is made when the first
    token is asked for (0600)."""

    def __init__(self, key_file: Path, folder_of: Callable[[str, int], Path]) -> None:
        self._tokens = Tokens(key_file)
        self._folder_of = folder_of
        self._open: dict[Holder, OpenAttempt] = {}

    # --- for the runtime

    def token(self, job_id: str, attempt: int) -> str:
        """What the workers of an attempt show; always the same. It opens nothing before `open` and after `close`."""
        return self._tokens.make(Holder(job_id, attempt))

    def open(self, gang: Gang, on_change: Callable[[], None]) -> None:
        """Let its workers in, and go on with what they said before, also to a server process before this one. Opening
        it again changes nothing. Reads small files.

        `on_change` is called on the event loop's thread when a view has changed in more than its log's length and its
        signs of life.
        """
        holder = Holder(gang.job_id, gang.attempt)
        if holder not in self._open:
            attempt = OpenAttempt(gang, on_change)
            attempt.open()
            self._open[holder] = attempt

    def view(self, job_id: str, attempt: int) -> tuple[WorkerView, ...]:
        """All workers of an open attempt, by number; () for one that is not open."""
        found = self._open.get(Holder(job_id, attempt))
        return found.views() if found else ()

    def stop(self, job_id: str, attempt: int, grace_s: float) -> None:
        """Order the workers to stop: they hear it sooner than the deletion of their pods, and need not hear it."""
        if found := self._open.get(Holder(job_id, attempt)):
            found.stop(grace_s)

    def release(self, job_id: str, attempt: int) -> None:
        """Worker 0 may leave without what is still missing of the others. By itself it is let go when every worker is
        drained."""
        if found := self._open.get(Holder(job_id, attempt)):
            found.release()

    def begun(self, job_id: str, attempt: int) -> bool:
        """Every worker was ready once, and ranks have been started."""
        found = self._open.get(Holder(job_id, attempt))
        return found is not None and found.begun

    async def append(self, job_id: str, attempt: int, worker: int, pod_uid: str, records: bytes) -> int:
        """Take the records (whole lines of client_lib.worker.format; others are passed over) that are not here yet,
        told by seq: the log of this pod as it was read elsewhere. How many were new; 0 for an attempt that is not open,
        and where the worker is another pod's.

        Raises StorageFull.
        """
        found = self._open.get(Holder(job_id, attempt))
        return await found.append(worker, pod_uid, records) if found else 0

    def forget(self, job_id: str, attempt: int) -> None:
        """Throw away all that was said, after the pods are gone and before any rank ran: other pods may take their
        places. The attempt stays open."""
        if found := self._open.get(Holder(job_id, attempt)):
            found.forget()

    def close(self, job_id: str, attempt: int) -> None:
        """Its token dies; what was said stays on disk."""
        if found := self._open.pop(Holder(job_id, attempt), None):
            found.close()

    # --- for the workers

    def admit(self, token: str) -> OpenAttempt:
        """What the token opens.

        Raises:
            Unauthorized: it is none of this server's, or its attempt is over.
            Unavailable: this server process has not found the attempt again yet.
        """
        holder = self._tokens.check(token)
        found = self._open.get(holder)
        if found is None:
            if is_open_on_disk(self._folder_of(*holder)):
                raise Unavailable("the server has just been started and does not follow this attempt yet")
            raise token_is_dead()
        return found
