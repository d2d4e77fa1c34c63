"""What another run of a job changes, and what is said about it."""

from __future__ import annotations

from typing import Any

import pytest

from client_lib.cli import job_options
from client_lib.errors import InvalidRequest
from client_lib.spec.job import JobSpec
from client_lib.spec.wire import CodeInPlace, CodeSnapshot, SubmitRequest
from client_lib.submit.changes import changed, code_message, differences

SPEC = JobSpec(script="t.py", n_workers=2, env_variables={"LR": "1", "API_KEY": "s1"}, requirements=["a"])


def test_only_what_differs_is_shown_and_no_secret() -> None:
    after = changed(SPEC, {"n_workers": 4, "env_variables": {"LR": "2", "API_KEY": "s2"}, "name": "other"})
    assert differences(SPEC, after) == [
        "env_variables: LR=1, API_KEY=*** -> LR=2, API_KEY=***",
        "n_workers: 2 -> 4",
    ]
    assert differences(SPEC, SPEC) == []


def test_none_means_the_default() -> None:
    assert changed(SPEC, {"requirements": None, "n_workers": None}) == JobSpec(
        script="t.py", env_variables=SPEC.env_variables
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"script": "u.py"}, "script can't be changed"),
        ({"n_worker": 4}, "n_workers"),
        ({"n_workers": 0}, "n_workers"),
    ],
)
def test_other_code_unknown_fields_and_wrong_values_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        changed(SPEC, changes)


def test_which_code_runs_is_said() -> None:
    digest = "a" * 64
    place = SubmitRequest(spec=SPEC, code=CodeInPlace(sha256=digest))
    assert code_message(place, digest) == "the code runs in place; the script is as it was, what it imports is today's"
    assert "was changed since: today's runs" in code_message(place, "b" * 64)
    assert "it is today's" in code_message(place, None)
    packed = SubmitRequest(spec=SPEC, code=CodeSnapshot(sha256=digest, root="/home/me/project"))
    assert code_message(packed, None) == "the same code: snapshot aaaaaaaaaaaa of /home/me/project"


@pytest.mark.parametrize(
    ("texts", "changes"),
    [
        (["n_workers=4"], {"n_workers": 4}),
        (["processes_per_worker=default"], {"processes_per_worker": "default"}),
        (["env_variables=LR=2", "env_variables=X=y=z"], {"env_variables": {"LR": "2", "API_KEY": "s1", "X": "y=z"}}),
        (["args=--lr", "args=0.1"], {"args": ["--lr", "0.1"]}),
        (["gpus=0,1"], {"gpus": [0, 1]}),
        (["requirements="], {"requirements": None}),
    ],
)
def test_values_of_set_are_read_as_the_fields_options_read_them(texts: list[str], changes: dict[str, Any]) -> None:
    assert job_options.changes(texts, SPEC) == changes


@pytest.mark.parametrize(
    ("text", "said"),
    [("n_worker=4", "Perhaps n_workers"), ("n_workers", "FIELD=VALUE|Perhaps"), ("n_workers=x", "n_workers")],
)
def test_a_set_that_can_not_be_read_says_so(text: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        job_options.changes([text], SPEC)
