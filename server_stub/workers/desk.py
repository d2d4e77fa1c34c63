"""The desk that workers elsewhere talk to, and at which their runtime looks: every open attempt of this server.

Runtimes open, look and close; `server_stub.api.workers` brings what the workers say. Event loop only, but for what says
otherwise: nothing here needs a lock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

State = Literal["preparing", "ready", "started", "ended"]


@dataclass(frozen=True)
class Gang:
    """One attempt whose workers will talk to this server."""

    job_id: str
    job_name: str
    attempt: int
    folder: Path
    """`attempt_dir`: here lies whether the gate is open."""
    workers: tuple[Path, ...]
    """`worker_dir` of each; `log/`, `report.json` and `results/` come to lie in it."""
    processes_per_worker: int
    snapshot: Path | None
    """The archive that these workers may fetch, and nobody else's."""
    function: Path | None
    log_limit_bytes: int
    """Of one worker's log: head and tail are kept."""
    segment_bytes: int


@dataclass(frozen=True)
class WorkerView:
    """What is known of one worker by its own words."""

    worker: int
    pod_uid: str | None = None
    """Who owns it: the first that said anything. None: nobody did."""
    pod: str | None = None
    """The name of that pod."""
    state: State | None = None
    """As it said last; also after a restart of the server."""
    log_length: int = 0
    """Offset behind the last record that is here."""
    signs_of_life: int = 0
    """Another one than before when a rank has written something meanwhile, a record or not."""
    missing: int = 0
    """Records that are lost for good: what did not fit into the worker's spool while this server was away."""
    report: dict[str, Any] | None = None
    """Its report.json."""
    drained: bool = False
    """The report and the whole log are here."""


class WorkerDesk:
    """One per server. `folder_of` (job id, attempt) is where an attempt's files are; `key_file` is made when the first
    token is asked for (0600)."""

    def __init__(self, key_file: Path, folder_of: Callable[[str, int], Path]) -> None:
        raise NotImplementedError

    # --- for the runtime

    def token(self, job_id: str, attempt: int) -> str:
        """What the workers of an attempt show; always the same. It opens nothing before `open` and after `close`."""
        raise NotImplementedError

    def open(self, gang: Gang, on_change: Callable[[], None]) -> None:
        """Let its workers in, and go on with what they said before, also to a server process before this one. Opening
        it again changes nothing. Reads small files: call it on the event loop's thread all the same.

        `on_change` is called on the event loop's thread when a view has changed in more than `log_length` and
        `signs_of_life`.
        """
        raise NotImplementedError

    def view(self, job_id: str, attempt: int) -> tuple[WorkerView, ...]:
        """All workers of an open attempt, by number; () for one that is not open."""
        raise NotImplementedError

    def stop(self, job_id: str, attempt: int, grace_s: float) -> None:
        """Order the workers to stop: faster than a deleted pod hears of it. Not needed where pods are deleted."""
        raise NotImplementedError

    def release(self, job_id: str, attempt: int) -> None:
        """Worker 0 may leave without what is still missing of the others. By itself it is let go when every worker is
        drained."""
        raise NotImplementedError

    async def append(self, job_id: str, attempt: int, worker: int, records: bytes) -> int:
        """Take the records (whole lines of client_lib.worker.format; others are passed over) that are not here yet,
        told by seq: the log as it was read elsewhere. How many were new."""
        raise NotImplementedError

    def forget(self, job_id: str, attempt: int) -> None:
        """Throw away all that was said, after the pods are gone and before any rank ran: other pods may take their
        places. The attempt stays open."""
        raise NotImplementedError

    def close(self, job_id: str, attempt: int) -> None:
        """Its token dies; what was said stays on disk."""
        raise NotImplementedError
