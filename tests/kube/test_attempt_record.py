"""The record of an attempt on disk, also as earlier versions wrote it."""

import json
from datetime import datetime, timezone
from pathlib import Path

import pytest

from client_lib.errors import ServerError
from client_lib.spec.states import Reason
from client_lib.spec.wire import Failure, WorkerInfo
from server_stub.runtimes import Observation
from server_stub.runtimes.kube.names import AttemptKey
from server_stub.runtimes.kube.objects import FIRST_KIND, Record

KEY = AttemptKey("id", 2)
AT = datetime(2026, 11, 20, tzinfo=timezone.utc)
RANK = {
    "rank": 3,
    "exit_code": None,
    "signal": 9,
    "started_at": "2026-11-20T00:00:00Z",
    "last_lines": ["no"],
}
END = Observation(
    *(
        "id",
        2,
        "ended",
        Reason.EXIT_CODE,
        "rank 0 failed",
        (WorkerInfo(worker=0),),
        AT,
        AT,
        ("a note",),
    ),
    first_failing=Failure(worker=1, rank=3, exit_code=137, signal=9, last_lines=["no"]),
    stacks=("a place",),
)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    for written in (
        Record(),
        Record("uid", "name", (Reason.CANCELLED, "stopped"), END, "TrainJob", "team"),
    ):
        written.write(tmp_path)
        assert Record.read(tmp_path, KEY) == written
    assert Record.read(tmp_path / "none", KEY) == Record()


def test_an_end_that_the_first_versions_wrote_is_read(tmp_path: Path) -> None:
    end = {
        "reason": "ExitCode",
        "message": "rank 0 failed",
        "ended_at": "2026-11-20T00:00:00+00:00",
        "workers": [WorkerInfo(worker=0).model_dump(mode="json")],
        "ranks": [RANK, RANK | {"started_at": None}],
        "remarks": ["a note"],
        "first_failing": [1, RANK],
        "stacks": ["a place"],
    }
    written = {
        "uid": "uid",
        "name": "name",
        "removed_because": ["Cancelled", "stopped"],
        "end": end,
    }
    (tmp_path / "attempt.json").write_text(json.dumps(written))
    removed = (Reason.CANCELLED, "stopped")
    assert Record.read(tmp_path, KEY) == Record("uid", "name", removed, END, FIRST_KIND)


def test_an_end_by_a_setup_that_an_earlier_version_wrote_is_read(tmp_path: Path) -> None:
    setup = RANK | {"rank": -1, "exit_code": 4, "signal": None, "started_at": None}
    end = {
        "reason": "SetupFailed",
        "message": "it failed",
        "ranks": [],
        "first_failing": [1, setup],
    }
    (tmp_path / "attempt.json").write_text(json.dumps({"uid": "uid", "name": "name", "end": end}))
    found = Record.read(tmp_path, KEY).end
    assert found
    assert found.first_failing == Failure(worker=1, exit_code=4, last_lines=["no"])


@pytest.mark.parametrize(
    "end", ["ended", {"ranks": [{"rank": 3}]}, {"ranks": 1}, {"first_failing": []}]
)
def test_a_damaged_end_is_named_with_its_record(tmp_path: Path, end: object) -> None:
    (tmp_path / "attempt.json").write_text(json.dumps({"uid": "uid", "name": "name", "end": end}))
    with pytest.raises(ServerError, match=r"attempt\.json can't be read: end="):
        Record.read(tmp_path, KEY)


def test_a_record_without_a_workload_has_no_kind(tmp_path: Path) -> None:
    (tmp_path / "attempt.json").write_text(json.dumps({"uid": None, "name": None}))
    assert Record.read(tmp_path, KEY).kind is None
