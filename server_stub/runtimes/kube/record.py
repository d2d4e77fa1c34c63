"""The state of an attempt on disk: `attempt.json` in its directory.

A record with a UID means that the workload was created: if it is missing now, it was deleted, and it is not created
again. After a record with an end only the removal of the objects is left.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from client_lib.errors import ServerError
from client_lib.spec.states import Reason
from client_lib.worker.directory import read_json, sync, write_json
from server_stub.runtimes import Observation
from server_stub.runtimes.kube.names import AttemptKey


@dataclass(frozen=True)
class Record:
    uid: str | None = None
    """UID of the workload; None: none was created yet, as far as is known."""
    name: str | None = None
    """Name of the workload, which is the second choice if another user's job has the first."""
    removed_because: tuple[Reason, str] | None = None
    """Reason and message of the deletion of the workload by this server, written before the deletion."""
    end: Observation | None = None
    """The final observation of the attempt."""
    kind: str | None = None
    """Kind of the workload, written before the first try to create it; None: none was tried."""
    namespace: str | None = None
    """Namespace of the workload, written with its kind, as the request may be unreadable later. None: none was tried,
    or an earlier version has written this."""


FIRST_KIND = "PyTorchJob"
"""Kind of a workload in a record without its kind, written before 2026-11-23."""
_RECORD = TypeAdapter(Record)


def _path(folder: Path) -> str:
    return str(folder / "attempt.json")


def read(folder: Path, key: AttemptKey) -> Record:
    """Read the record of an attempt; an empty one if there is no file. Raises ServerError: it is of a later version."""
    data = read_json(_path(folder)) or {}
    if data.get("uid") is not None:
        data.setdefault("kind", FIRST_KIND)
    if end := data.get("end"):  # the first versions named the notes otherwise, and left out what the key says
        ours = {"job_id": key.job_id, "attempt": key.attempt, "phase": "ended", "notes": end.pop("remarks", ())}
        data["end"] = ours | end
    try:
        return _RECORD.validate_python(data)
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        place = ".".join(map(str, wrong["loc"]))
        raise ServerError(f"the record {_path(folder)} can't be read: {place}={wrong['input']!r}") from error


def write(folder: Path, record: Record) -> None:
    """Write the record and sync it to disk."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_json(_path(folder), _RECORD.dump_python(record, mode="json"), durable=True)
    sync(folder)
