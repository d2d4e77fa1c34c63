"""What another run of a job changes, and what is said about it."""

from datetime import datetime, timezone
from typing import Any

import pytest

from client_lib.cli import job_options
from client_lib.errors import InvalidRequest
from client_lib.spec.job import CheckpointParams, JobSpec
from client_lib.spec.request import CodeInPlace, CodeSnapshot, FunctionCode, SubmitRequest
from client_lib.spec.states import Reason, State
from client_lib.spec.wire import JobInfo
from client_lib.submit.changes import (
    changed,
    checkpoints,
    code_message,
    differences,
    what_differs,
    with_arguments,
)

SPEC = JobSpec(
    script="t.py", n_workers=2, env_variables={"LR": "1", "API_KEY": "s1"}, requirements=["a"]
)


def test_only_what_differs_is_shown_and_no_secret() -> None:
    after = changed(
        SPEC, {"n_workers": 4, "env_variables": {"LR": "2", "API_KEY": "s2"}, "name": "other"}
    )
    assert differences(SPEC, after) == [
        "env_variables: LR=1 API_KEY=*** -> LR=2 API_KEY=***",
        "n_workers: 2 -> 4",
    ]
    assert differences(SPEC, SPEC) == []


def test_the_step_to_start_from_is_of_one_job_alone() -> None:
    before = JobSpec(script="t.py", checkpoint_params={"keep": 3, "from_step": 2})
    assert changed(before, {}).checkpoint_params == CheckpointParams(keep=3)
    again = changed(before, {"checkpoint_params": {"from_step": 4}})
    assert again.checkpoint_params == CheckpointParams(from_step=4)


def test_differences_are_quoted_as_a_shell_needs_them() -> None:
    before = JobSpec(
        script="t.py", args=["--lr", "0.3"], flags={"note": "two words", "quiet": None}
    )
    after = changed(before, {"args": ["--lr 0.5", ""], "flags": None})
    assert differences(before, after) == [
        "args: --lr 0.3 -> '--lr 0.5' ''",
        "flags: note='two words' quiet -> none",
    ]


@pytest.mark.parametrize(
    ("changes", "sha256_now", "differ"),
    [
        ({"n_workers": 4, "labels": {"a": "b"}, "name": "other"}, "a" * 64, []),
        ({"args": ["--lr", "1"], "env_variables": {"LR": 1}}, "a" * 64, []),
        ({"args": ["--lr", "2"]}, "a" * 64, ["args"]),
        ({"flags": {"lr": 2}, "env_variables": {"LR": "2"}}, None, ["flags", "env_variables"]),
        ({}, "b" * 64, ["script"]),
    ],
)
def test_what_the_program_reads_makes_it_another_experiment(
    changes: dict[str, Any], sha256_now: str | None, differ: list[str]
) -> None:
    spec = JobSpec(script="t.py", args=["--lr", "1"], env_variables={"LR": "1"})
    stored = SubmitRequest(spec=spec, code=CodeInPlace(sha256="a" * 64))
    assert what_differs(stored, changed(spec, changes), sha256_now) == differ


def before(state: State = State.FAILED, **fields: Any) -> JobInfo:
    spec = JobSpec(script="t.py", **fields)
    return JobInfo(
        name="old",
        id="a" * 32,
        owner="me",
        version=1,
        runtime="local",
        state=state,
        reason=Reason.QUEUED,
        spec=spec,
        code=CodeInPlace(),
        created_at=datetime.now(timezone.utc),
    )


@pytest.mark.parametrize(
    ("old", "differ", "resume", "copied", "said"),
    [
        (before(), [], None, True, "a copy of what old has left there"),
        (
            before(),
            ["args"],
            None,
            False,
            "starts fresh, without the checkpoints of old: args differ; --resume",
        ),
        (before(), ["args"], True, True, "a copy of what old has left there"),
        (before(), [], False, False, "starts fresh, without the checkpoints of old"),
        (before(State.RUNNING), [], None, False, "a new one, as old is RUNNING"),
        (
            before(State.RUNNING),
            ["script"],
            None,
            False,
            "starts fresh, without the checkpoints of old: script differs",
        ),
        (before(checkpoint_dir="/data"), [], None, False, "checkpoint_dir=/data, as it was left"),
        (
            before(checkpoint_dir="/data"),
            ["args"],
            True,
            False,
            "checkpoint_dir=/data, as it was left",
        ),
    ],
)
def test_checkpoints_are_those_of_the_same_experiment_or_on_demand(
    old: JobInfo, differ: list[str], resume: bool | None, copied: bool, said: str
) -> None:
    found, message = checkpoints(old, old.spec, differ, resume)
    assert (found, said in message) == (copied, True), message


def test_a_directory_of_another_experiment_is_not_used_unless_on_demand() -> None:
    old = before(checkpoint_dir="/data")
    with pytest.raises(
        InvalidRequest, match=r"checkpoint_dir=/data has the checkpoints of old.*args differ"
    ):
        checkpoints(old, old.spec, ["args"], None)
    elsewhere = changed(old.spec, {"checkpoint_dir": "/other"})
    assert checkpoints(old, elsewhere, ["args"], None)[1] == "checkpoint_dir=/other, as it was left"


def test_a_directory_that_the_old_job_named_is_not_copied() -> None:
    old = before(checkpoint_dir="/data")
    new = changed(old.spec, {"checkpoint_dir": None})
    assert checkpoints(old, new, [], None) == (
        False,
        "checkpoint_dir: a new one; those of old stay in /data",
    )
    with pytest.raises(
        InvalidRequest,
        match="the checkpoints of old are in checkpoint_dir=/data, which is not copied",
    ):
        checkpoints(old, new, [], True)


def test_a_function_keeps_its_arguments() -> None:
    function = FunctionCode(sha256="a" * 64, name="train", python="3.11", cloudpickle="3.0")
    with pytest.raises(InvalidRequest, match="args can't be changed: the job calls train"):
        changed(JobSpec(script="train()"), {"args": ["1"]}, function)


def test_new_arguments_replace_those_that_stand_behind_the_script() -> None:
    spec = JobSpec(script="'/my code/t.py' --lr 1", args=["--steps", "2"])
    assert with_arguments(spec, ["--lr", "3"]) == {
        "script": "'/my code/t.py'",
        "args": ["--lr", "3"],
    }
    assert with_arguments(SPEC, []) == {"args": []}
    after = changed(spec, with_arguments(spec, ["--lr", "3"]))
    assert after.command() == ["/my code/t.py", "--lr", "3"]


def test_none_means_the_default() -> None:
    assert changed(SPEC, {"requirements": None, "n_workers": None}) == JobSpec(
        script="t.py", env_variables=SPEC.env_variables
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"script": "u.py"}, "script can't be changed"),
        ({"script": "it's"}, "script: .* can't be split into words"),
        ({"n_worker": 4}, "n_workers"),
        ({"n_workers": 0}, "n_workers"),
    ],
)
def test_other_code_unknown_fields_and_wrong_values_are_refused(
    changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidRequest, match=said):
        changed(SPEC, changes)


def test_which_code_runs_is_said() -> None:
    digest = "a" * 64
    place = SubmitRequest(spec=SPEC, code=CodeInPlace(sha256=digest))
    assert (
        code_message(place, digest)
        == "the code runs in place; the script is as it was, what it imports is today's"
    )
    assert "was changed since: today's runs" in code_message(place, "b" * 64)
    assert "it is today's" in code_message(place, None)
    packed = SubmitRequest(spec=SPEC, code=CodeSnapshot(sha256=digest, root="/home/me/project"))
    assert code_message(packed, None) == "the same code: snapshot aaaaaaaaaaaa of /home/me/project"


@pytest.mark.parametrize(
    ("texts", "changes"),
    [
        (["n_workers=4"], {"n_workers": 4}),
        (["processes_per_worker=default"], {"processes_per_worker": "default"}),
        (
            ["env_variables=LR=2", "env_variables=X=y=z"],
            {"env_variables": {"LR": "2", "API_KEY": "s1", "X": "y=z"}},
        ),
        (["args=--lr", "args=0.1"], {"args": ["--lr", "0.1"]}),
        (["gpus=0,1"], {"gpus": [0, 1]}),
        (["requirements="], {"requirements": None}),
        (
            ["env_variables=NOTE=two words"],
            {"env_variables": {"LR": "1", "API_KEY": "s1", "NOTE": "two words"}},
        ),
    ],
)
def test_values_of_set_are_read_as_the_fields_options_read_them(
    texts: list[str], changes: dict[str, Any]
) -> None:
    assert job_options.changes(texts, SPEC) == changes


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("args=--lr 0.5", "one argument with a space"),
        ("n_worker=4", "did you mean n_workers"),
        ("n_workers", "FIELD=VALUE"),
        ("lr=0.5", "behind `--`"),
        ("n_workers=x", "n_workers: 'x' is not a whole number"),
    ],
)
def test_a_set_that_can_not_be_read_says_so(text: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        job_options.changes([text], SPEC)
