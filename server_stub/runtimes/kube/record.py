"""The state of an attempt on disk: `attempt.json` in its directory.

A record with a UID means that the workload was created: if it is missing now, it was deleted, and it is not created
again. After a record with an end only the removal of the objects is left.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from client_lib.spec.states import Reason
from client_lib.spec.wire import RankReport, WorkerInfo
from client_lib.worker.directory import read_json, sync, write_json
from server_stub.runtimes import FailingRank, Observation


@dataclass(frozen=True)
class Record:
    """The content of `attempt.json`."""

    uid: str | None = None
    """UID of the workload; None: none was created yet, as far as is known."""
    name: str | None = None
    """Name of the workload, which is the second choice if another user's job has the first."""
    removed_because: tuple[str, str] | None = None
    """(reason, message) of the deletion of the workload by this server, written before the deletion."""
    end: dict[str, Any] | None = None
    """The final observation of the attempt, see `end_of`."""


def _path(folder: Path) -> str:
    return str(folder / "attempt.json")


def read(folder: Path) -> Record:
    """Read the record; an empty one if there is no file."""
    data = read_json(_path(folder)) or {}
    because = data.get("removed_because")
    removed = (because[0], because[1]) if because else None
    return Record(data.get("uid"), data.get("name"), removed, data.get("end"))


def write(folder: Path, record: Record) -> None:
    """Write the record and sync it to disk."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_json(_path(folder), asdict(record), durable=True)
    sync(folder)


def end_of(seen: Observation) -> dict[str, Any]:
    """The final observation as JSON."""
    return {
        "reason": seen.reason.value,
        "message": seen.message,
        "ended_at": seen.ended_at.isoformat() if seen.ended_at else None,
        "workers": [worker.model_dump(mode="json") for worker in seen.workers],
        "ranks": [rank.model_dump(mode="json") for rank in seen.ranks],
        "remarks": list(seen.notes),
        "first_failing": (seen.first_failing.worker, seen.first_failing.report.model_dump(mode="json"))
        if seen.first_failing
        else None,
        "stacks": list(seen.stacks),
    }


def observation(job_id: str, attempt: int, end: dict[str, Any]) -> Observation:
    """The final observation from the JSON of `end_of`."""
    first = end.get("first_failing")  # not written before 2026-11-22
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
        FailingRank(first[0], RankReport.model_validate(first[1])) if first else None,
        tuple(end.get("stacks", ())),
    )
