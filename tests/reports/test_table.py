"""Rows of the table of jobs, and the texts of sizes, durations and times that all reports share."""

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, strategies as st

from client_lib.reports import table
from client_lib.spec.wording import duration
from tests.kit.jobs import job_json

NOW = datetime(2026, 1, 2, 4, 0, 0, tzinfo=timezone.utc)
CREATED = "2026-01-02T03:00:00Z"


@pytest.mark.parametrize(
    ("spec", "size"),
    [
        ({}, "1"),
        ({"n_workers": 2}, "2"),
        ({"processes_per_worker": 8}, "1x8"),
        ({"n_workers": 4, "instance_type": "a100.8gpu"}, "4x8"),
        ({"n_workers": 4, "instance_type": "a100.8gpu", "processes_per_worker": 1}, "4"),
        ({"n_workers": 4, "instance_type": "a100.8gpu", "type": "nogpu"}, "4"),
        ({"instance_type": "cpu.2C.8G"}, "1"),
    ],
)
def test_a_size_is_workers_and_processes_of_each(spec: dict[str, Any], size: str) -> None:
    assert table.size(job_json(spec={"script": "train.py", **spec})) == size


def test_the_size_of_a_job_that_was_moved_to_the_cpu_has_no_gpus() -> None:
    spec = {"script": "train.py", "instance_type": "a100.8gpu"}
    notice = "instance_type='a100.8gpu' asks for 8 GPUs per worker: the job runs on the CPU"
    assert table.size(job_json(spec=spec, notices=[notice])) == "1"


@pytest.mark.parametrize(
    ("facts", "state", "why"),
    [
        (
            {"message": "every rank ended with exit code 0", "state": "SUCCEEDED"},
            "SUCCEEDED in 1m05s",
            "",
        ),
        ({"reason": "Running", "message": "m", "finished_at": None}, "RUNNING for 30m00s", ""),
        (
            {"reason": "Hung", "message": "rank 1 waits", "finished_at": None},
            "RUNNING for 30m00s",
            "Hung: rank 1 waits",
        ),
        (
            {
                "state": "FAILED",
                "message": "m",
                "failure": {"rank": 1, "exception": "ValueError: x"},
            },
            "FAILED after 1m05s",
            "rank 1: ValueError: x",
        ),
        (
            {"state": "FAILED", "reason": "Timeout", "message": "stop_timer"},
            "FAILED after 1m05s",
            "Timeout: stop_timer",
        ),
        (
            {"state": "PENDING", "reason": "Queued", "started_at": None, "finished_at": None},
            "PENDING",
            "Queued",
        ),
    ],
)
def test_a_reason_is_given_where_not_all_is_well(
    facts: dict[str, Any], state: str, why: str
) -> None:
    ran = job_json(
        **{"started_at": "2026-01-02T03:30:00Z", "finished_at": "2026-01-02T03:31:05Z", **facts}
    )
    assert (table.state(ran, NOW), table.why(ran)) == (state, why)


LOST = {"code": "loss", "sentence": "loss was NaN from step 5"}


def test_what_deserves_attention_is_the_reason_of_a_job_in_a_good_state() -> None:
    ended = job_json(state="SUCCEEDED", reason="Completed", attention=[LOST])
    assert table.why(ended) == "loss was NaN from step 5"
    assert table.end(ended, "SUCCEEDED in 5s") == "a SUCCEEDED in 5s; loss was NaN from step 5"
    assert table.end(job_json(), "SUCCEEDED in 5s") == "a SUCCEEDED in 5s"
    running = job_json(reason="Running", attention=[LOST], progress={"done": 0.45})
    assert table.rows([running], NOW, ["WHY"]) == [["loss was NaN from step 5 · 45%"]]
    hung = {"code": "hung", "sentence": "rank 1 waits"}
    job = job_json(reason="Hung", message="rank 1 waits", attention=[hung], progress={"done": 0.4})
    assert table.rows([job], NOW, ["WHY"]) == [["Hung: rank 1 waits"]]
    failed = job_json(state="FAILED", reason="Timeout", message="stop_timer", attention=[LOST])
    assert table.why(failed) == "Timeout: stop_timer"
    group = {"name": "scan", "script": "train.py", "counts": {"SUCCEEDED": 2}, "size": 2}
    told = "scan-1: loss was NaN from step 5"
    row = table.group_as_job({**group, "attention": [{"code": "loss", "sentence": told}]})
    assert table.why(row) == f"2/2 SUCCEEDED; {told}"


def test_a_server_of_the_version_before_tells_its_hints_in_the_progress() -> None:
    older = job_json(progress={"nan": "loss is NaN since step 5", "slow": "rank 3 is slow"})
    assert table.hints(older) == ["loss is NaN since step 5", "rank 3 is slow"]
    newer = job_json(
        attention=[LOST, {"code": "slow", "sentence": "rank 3 is slow"}],
        progress={"nan": LOST["sentence"], "slow": "rank 3 is slow"},
    )
    assert table.hints(newer) == [LOST["sentence"], "rank 3 is slow"]


def test_the_script_stands_without_its_folder_and_with_its_arguments() -> None:
    spec = {"script": "/home/ann/x y/train.py", "args": ["--lr", "0 1"], "flags": {"epochs": "3"}}
    assert table.rows([job_json(spec=spec)], NOW, ["SCRIPT"]) == [
        ["x y/train.py --lr '0 1' --epochs=3"]
    ]
    function = {"script": "f()", "args": ["0.1", "path='/a/b'"]}
    assert table.rows([job_json(spec=function)], NOW, ["SCRIPT"]) == [["f(0.1, path='/a/b')"]]


@given(st.timedeltas(timedelta(0), timedelta(days=400)))
def test_a_duration_is_right_to_its_smaller_unit(span: timedelta) -> None:
    text = duration(span.total_seconds())
    units = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    number, found = "", 0
    for letter in text:
        if letter in units:
            found, number = found + int(number) * units[letter], ""
        else:
            number += letter
    assert abs(found - span.total_seconds()) <= units[text[-1]]


def test_a_time_is_utc_and_says_so() -> None:
    there = datetime(2026, 1, 2, 5, 0, 0, tzinfo=timezone(timedelta(hours=2)))
    assert (table.stamp(there), table.stamp("2026-01-02T03:00:00.5+00:00")) == (CREATED, CREATED)
