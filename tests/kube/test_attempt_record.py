"""The record of an attempt on disk, also as earlier versions wrote it."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path

from client_lib.spec.states import Reason
from client_lib.spec.wire import RankReport, WorkerInfo
from server_stub.runtimes import FailingRank, Observation
from server_stub.runtimes.kube.names import AttemptKey
from server_stub.runtimes.kube.objects import FIRST_KIND, Record

KEY = AttemptKey("id", 2)
RANK = RankReport(rank=0, exit_code=1, last_lines=["no"])
AT = datetime(2026, 11, 20, tzinfo=timezone.utc)
END = Observation(
    *("id", 2, "ended", Reason.EXIT_CODE, "rank 0 failed", (WorkerInfo(worker=0),), (RANK,), AT, ("a note",)),
    first_failing=FailingRank(0, RANK),
    stacks=("a place",),
)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    for written in (Record(), Record("uid", "name", (Reason.CANCELLED, "stopped"), END, "TrainJob", "team")):
        written.write(tmp_path)
        assert Record.read(tmp_path, KEY) == written
    assert Record.read(tmp_path / "none", KEY) == Record()


def test_an_end_that_the_first_versions_wrote_is_read(tmp_path: Path) -> None:
    end = {
        "reason": "ExitCode",
        "message": "rank 0 failed",
        "ended_at": "2026-11-20T00:00:00+00:00",
        "workers": [WorkerInfo(worker=0).model_dump(mode="json")],
        "ranks": [RANK.model_dump(mode="json")],
        "remarks": ["a note"],
        "first_failing": [0, RANK.model_dump(mode="json")],
        "stacks": ["a place"],
    }
    written = {"uid": "uid", "name": "name", "removed_because": ["Cancelled", "stopped"], "end": end}
    (tmp_path / "attempt.json").write_text(json.dumps(written))
    removed = (Reason.CANCELLED, "stopped")
    assert Record.read(tmp_path, KEY) == Record("uid", "name", removed, END, FIRST_KIND)


def test_a_record_without_a_workload_has_no_kind(tmp_path: Path) -> None:
    (tmp_path / "attempt.json").write_text(json.dumps({"uid": None, "name": None}))
    assert Record.read(tmp_path, KEY).kind is None
