"""What is written down of an attempt on a cluster: `attempt.json` in its directory.

With a UID in it the PyTorchJob was made: one that is not there any more was deleted, and is never made again. With an
end in it only the objects are left to be removed.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from client_lib.spec.states import Reason
from client_lib.spec.wire import RankReport, WorkerInfo
from client_lib.worker.directory import read_json, write_json
from server_stub.runtimes import Observation


@dataclass(frozen=True)
class Record:
    uid: str | None = None
    """Of the PyTorchJob; None: none was made yet, as far as is known."""
    name: str | None = None
    """Of the PyTorchJob, as another user's job may have had the first choice."""
    removed_because: tuple[str, str] | None = None
    """(reason, message): this server has deleted the PyTorchJob, or is about to. It is nobody else's deed."""
    end: dict[str, Any] | None = None
    """How the attempt ended."""


def _path(folder: Path) -> str:
    return str(folder / "attempt.json")


def read(folder: Path) -> Record:
    data = read_json(_path(folder)) or {}
    because = data.get("removed_because")
    removed = (because[0], because[1]) if because else None
    return Record(data.get("uid"), data.get("name"), removed, data.get("end"))


def write(folder: Path, record: Record) -> None:
    """Durable when it returns."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_json(_path(folder), asdict(record), durable=True)
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def end_of(seen: Observation) -> dict[str, Any]:
    return {
        "reason": seen.reason.value,
        "message": seen.message,
        "ended_at": seen.ended_at.isoformat() if seen.ended_at else None,
        "workers": [worker.model_dump(mode="json") for worker in seen.workers],
        "ranks": [rank.model_dump(mode="json") for rank in seen.ranks],
        "remarks": list(seen.remarks),
    }


def observation(job_id: str, attempt: int, end: dict[str, Any]) -> Observation:
    """The opposite of `end_of`."""
    return Observation(
        job_id,
        attempt,
        "ended",
        Reason(end["reason"]),
        end["message"],
        tuple(map(WorkerInfo.model_validate, end["workers"])),
        tuple(map(RankReport.model_validate, end["ranks"])),
        datetime.fromisoformat(end["ended_at"]) if end["ended_at"] else None,
        tuple(end["remarks"]),
    )
