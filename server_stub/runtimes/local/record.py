"""`attempt.json` in the directory of an attempt, written before its first launcher starts.

The file marks the attempt as started: with it, a restarted server looks for the workers; without it, the attempt waits
in the queue. It also holds the resources of the attempt, so that they are not handed out twice.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path

from client_lib.errors import ServerError
from client_lib.worker.directory import read_json, sync, write_json
from server_stub.runtimes.local.scheduling import Grant


@dataclass(frozen=True)
class Record:
    boot_id: str
    workers: int
    grant: Grant
    master_port: int
    memory_gib: float

    @property
    def uses_gpus(self) -> bool:
        return any(self.grant)

    @property
    def gpus(self) -> frozenset[int]:
        return frozenset(index for gpus in self.grant for index in gpus)


def _path(attempt_dir: Path) -> str:
    return str(attempt_dir / "attempt.json")


def read(attempt_dir: Path) -> Record | None:
    """None: the attempt was never started. Raises ServerError: it was, and the file can't be read."""
    data = read_json(_path(attempt_dir))
    if data is None and not os.path.exists(_path(attempt_dir)):
        return None
    try:
        return Record(**(data or {}) | {"grant": tuple(tuple(gpus) for gpus in (data or {})["grant"])})
    except (KeyError, TypeError) as error:
        raise ServerError(f"the record {_path(attempt_dir)} can't be read: {type(error).__name__}") from error


def write(attempt_dir: Path, record: Record) -> None:
    """Write it atomically; `make_durable` makes it survive a power cut."""
    write_json(_path(attempt_dir), asdict(record))


def returned(attempt_dir: Path) -> dict[int, int]:
    """Lost elastic worker -> number of its restarts."""
    found = read_json(_returned_path(attempt_dir)) or {}
    return {int(worker): times for worker, times in found.items()}


def write_returned(attempt_dir: Path, returned: dict[int, int]) -> None:
    """Called before a restart: a server killed in between must not count too few."""
    write_json(_returned_path(attempt_dir), {str(worker): times for worker, times in returned.items()}, durable=True)


def _returned_path(attempt_dir: Path) -> str:
    return str(attempt_dir / "returned.json")


def make_durable(attempt_dir: Path) -> None:
    """Return when the record would survive a power cut: ranks start only then, or they could start twice."""
    for path in (_path(attempt_dir), attempt_dir, attempt_dir.parent, attempt_dir.parent.parent):
        sync(path)
