"""Answers as an older client reads them, and as a user sees them in a prompt."""

import json
from typing import Any

import pytest

from client_lib.reports.explanation import as_text, explain, explained
from client_lib.spec.mlspace import shown_status
from client_lib.spec.request import SubmitRequest
from client_lib.spec.states import Reason, State, as_sent
from client_lib.spec.wire import Event, JobInfo, JobPage, JobProvenance, WorkerInfo

INFO: dict[str, Any] = {
    "name": "train-x7k2m",
    "id": "0" * 32,
    "owner": "ann",
    "version": 7,
    "runtime": "local",
    "state": "FAILED",
    "reason": "ExitCode",
    "message": "rank 3 on worker 1 ended with exit code 1: " + "ValueError: too many values " * 50,
    "spec": {"script": "train.py", "flags": {f"flag-{number}": number for number in range(100)}},
    "code": {"mode": "in_place"},
    "created_at": "2026-11-22T10:00:00Z",
    "failure": {"rank": 3, "last_lines": ["a line"] * 50},
}


def info(**changes: Any) -> JobInfo:
    return JobInfo.model_validate_json(json.dumps(INFO | changes))


NEWER: dict[str, Any] = {
    "state": "SUSPENDED",
    "reason": "SomethingNew",
    "workers": [{"worker": 0, "state": "frozen"}],
}


def test_a_reason_and_states_of_a_newer_server_are_shown_as_it_sent_them() -> None:
    seen = info(**NEWER)
    assert (seen.state, seen.reason, seen.workers[0].state) == (
        "SUSPENDED",
        "SomethingNew",
        "frozen",
    )
    assert f"{seen.state} {seen.reason}" == "SUSPENDED SomethingNew"
    assert not seen.state.final
    sent_on = seen.model_dump(mode="json")
    assert (sent_on["state"], sent_on["reason"], sent_on["workers"][0]["state"]) == (
        "SUSPENDED",
        "SomethingNew",
        "frozen",
    )


def test_such_a_job_can_be_explained_and_has_a_status() -> None:
    seen = info(**NEWER)
    event = Event.model_validate(NEWER | {"time": seen.created_at, "attempt": 1, "message": "m"})
    assert "is SUSPENDED (SomethingNew)" in as_text(explain(seen, [event], seen.created_at))
    assert explained(seen, [event], seen.created_at).reason == "SomethingNew"
    assert f"Job status={shown_status(seen.state)}" == "Job status=SUSPENDED"


def test_known_values_are_the_members_themselves() -> None:
    seen = info()
    assert seen.state is State.FAILED
    assert seen.reason is Reason.EXIT_CODE
    assert as_sent(State, "RUNNING") is State.RUNNING


def test_a_field_of_a_newer_spec_is_left_out_of_answers_and_refused_in_requests() -> None:
    newer = {"script": "train.py", "field_of_tomorrow": 1}
    assert info(spec=newer).spec.script == "train.py"
    with pytest.raises(ValueError, match="field_of_tomorrow"):
        SubmitRequest.model_validate({"spec": newer, "code": INFO["code"]})


SUBMITTED = INFO | {
    "code": {"mode": "snapshot", "sha256": "0" * 64, "root": "/code"},
    "function": {
        "sha256": "0" * 64,
        "name": "train",
        "python": "3.12",
        "cloudpickle": "3.1",
    },
}


@pytest.mark.parametrize("part", ["spec", "code", "function"])
def test_a_field_of_tomorrow_is_ignored_in_each_part_of_an_answer(part: str) -> None:
    newer = SUBMITTED | {part: SUBMITTED[part] | {"field_of_tomorrow": {"a": 1}}}
    today = JobInfo.model_validate(SUBMITTED)
    assert JobInfo.model_validate(newer) == today
    assert JobInfo.model_validate_json(json.dumps(newer)) == today
    page = json.dumps({"jobs": [SUBMITTED, newer]})
    assert JobPage.model_validate_json(page).jobs == [today, today]
    assert "field_of_tomorrow" in newer[part], "the caller's object is left alone"


def test_a_field_of_tomorrow_is_ignored_in_the_provenance() -> None:
    newer = json.dumps({"submitted": {"commit": "abc", "field_of_tomorrow": 1}})
    found = JobProvenance.model_validate_json(newer).submitted
    assert found
    assert found.commit == "abc"


def test_a_wrong_value_beside_a_field_of_tomorrow_is_still_refused() -> None:
    with pytest.raises(ValueError, match="script"):
        info(spec={"script": 1, "field_of_tomorrow": 1})


def test_values_that_are_no_text_are_still_refused() -> None:
    for wrong in (
        {"state": 1},
        {"reason": None},
        {"workers": [{"worker": 0, "state": 3}]},
        {"spec": {"script": 1}},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            info(**wrong)


def test_the_schema_lists_the_states_that_this_version_knows() -> None:
    schema = JobInfo.model_json_schema()["$defs"]
    assert schema["State"]["enum"] == [str(state) for state in State]
    assert WorkerInfo.model_json_schema()["properties"]["state"]["enum"] == [
        "waiting",
        "starting",
        "running",
        "ended",
    ]


def test_the_repr_of_a_job_s_info_and_of_its_explanation_is_one_short_line() -> None:
    seen = info()
    for shown in (repr(seen), str(seen), repr(explained(seen, [], seen.created_at))):
        assert len(shown) < 120
        assert "\n" not in shown
        assert "train-x7k2m" in shown
        assert "FAILED" in shown
        assert "ExitCode" in shown
    assert seen.model_dump()["failure"]["last_lines"] == ["a line"] * 50
