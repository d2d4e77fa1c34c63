"""The job spec: what it accepts, what it refuses and how it says so, and that JSON keeps it."""

import shlex
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given, strategies as st
from pydantic import ValidationError

from client_lib.spec.command_line import check_name, split_script
from client_lib.spec.job import (
    REFUSED_TYPES,
    HealthAction,
    HealthSubAction,
    JobSpec,
    JobType,
    PriorityClass,
)
from client_lib.spec.mlspace import PlatformType
from client_lib.spec.refusals import invalid_request
from client_lib.spec.request import CodeInPlace, SubmitRequest, Submitter
from client_lib.spec.secrets import MASK
from client_lib.spec.states import FAILURES
from client_lib.spec.validation import STORED
from client_lib.spec.wire import JobInfo

text = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=30)
lines = st.text(st.characters(blacklist_categories=["Cc", "Cs"]), max_size=30)
names = st.from_regex(r"[a-z]([-a-z0-9]{0,48}[a-z0-9])?", fullmatch=True)
env_names = st.from_regex(r"MY_[A-Z_]{0,10}", fullmatch=True)
scalars = st.one_of(
    text, st.integers(), st.booleans(), st.none(), st.floats(allow_nan=False, allow_infinity=False)
)
specs = st.builds(
    JobSpec,
    script=text.filter(str.strip).map(shlex.quote),
    type=st.sampled_from(JobType),
    args=st.lists(text, max_size=4),
    flags=st.dictionaries(st.from_regex(r"[a-z]{1,8}", fullmatch=True), scalars, max_size=3),
    env_variables=st.dictionaries(env_names, scalars, max_size=3),
    n_workers=st.integers(1, 9999),
    processes_per_worker=st.one_of(st.just("default"), st.integers(1, 1024)),
    name=st.one_of(st.none(), names),
    labels=st.dictionaries(lines, lines, max_size=3),
    grace_s=st.floats(0, 3600),
)


@given(specs)
def test_a_spec_through_json_and_back_is_the_same_with_and_without_defaults(spec: JobSpec) -> None:
    for exclude_unset in (False, True):
        assert (
            JobSpec.model_validate_json(spec.model_dump_json(exclude_unset=exclude_unset)) == spec
        )


@given(
    st.lists(text, min_size=1, max_size=5).filter(lambda words: any(word.strip() for word in words))
)
def test_quoted_words_come_back_as_they_were(words: list[str]) -> None:
    assert split_script(shlex.join(words)) == words


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("train.py", ["train.py"]),
        ("train.py key=value --x 'a b'", ["train.py", "key=value", "--x", "a b"]),
        (
            "bash -c 'cd /tmp && echo $HOME | cat > x'",
            ["bash", "-c", "cd /tmp && echo $HOME | cat > x"],
        ),
        ('python -c "import os; print(1)"', ["python", "-c", "import os; print(1)"]),
        ("grep '|' a\\$b", ["grep", "|", "a$b"]),
        ("echo ''", ["echo", ""]),
        ("train.py --name=#1 # kept", ["train.py", "--name=#1", "#", "kept"]),
    ],
)
def test_a_script_splits_by_shell_rules(script: str, words: list[str]) -> None:
    assert split_script(script) == words


@pytest.mark.parametrize(
    "wrong", ["a && b", "a | b", "a; b", "echo $HOME", 'echo "$HOME"', "a > b", "a < b", "echo `x`"]
)
def test_shell_syntax_is_refused_with_the_way_out(wrong: str) -> None:
    with pytest.raises(ValueError, match="which only a shell understands") as refused:
        split_script(wrong)
    assert f"bash -c {shlex.quote(wrong)}" in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"n_workers": 0}, "greater than or equal to 1"),
        ({"n_workers": -1}, "greater than or equal to 1"),
        ({"n_workers": 10**6}, "less than or equal to 9999"),
        ({"n_workers": "2"}, "write it without quotes"),
        ({"n_workers": True}, "not a whole number"),
        ({"type": "horovod"}, "'pytorch2'"),
        ({"n_wokers": 2}, "Extra inputs"),
        ({"name": "Train_7"}, "DNS label"),
        ({"name": "a" * 51}, "51 characters; at most 50"),
        ({"name": "7-train"}, "beginning with a letter"),
        ({"env_variables": {"A=B": 1}}, "'A=B'"),
        ({"env_variables": {"RANK": 1}}, "set for each process by the launcher"),
        ({"env_variables": {"A": "x\0y"}}, "env_variables.A\n  Value error, holds a NUL byte"),
        ({"env_variables": {"": "x"}}, "''"),
        ({"env_variables": {"A\0": "x"}}, "'A"),
        ({"args": ["a\0"]}, "NUL"),
        ({"flags": {"--lr": 1}}, "without dashes"),
        ({"script": "  "}, "is empty"),
        ({"script": "'a"}, "No closing quotation"),
        ({"base_image": "train.py"}, "script='train.py'"),
        ({"health_params": {"log_period": 20}}, "needs action"),
        ({"checkpoint_params": {"keep": 0}}, "greater than or equal to 1"),
        ({"checkpoint_params": {"damaged": "remove"}}, "'aside' or 'leave'"),
        ({"checkpoint_params": {"kep": 3}}, "kep"),
        ({"checkpoint_params": {"keep_best": "acc"}}, "give both, as in keep=3"),
        ({"checkpoint_params": {"keep": 3, "keep_best": ""}}, "checkpoint_params.keep_best"),
        (
            {"checkpoint_dir": "c", "checkpoint_params": {"from_step": 3}},
            "from_step is for checkpoints that are copied",
        ),
        ({"grace_s": -1}, "greater than or equal to 0"),
        (
            {"max_retry": 1, "retry_on": ["NodeLst"]},
            "'NodeLst' is no failure of an attempt; did you mean 'NodeLost'?",
        ),
        ({"max_retry": 1, "retry_on": ["Timeout"]}, "there are: ExitCode, Signal, OutOfMemory, "),
        (
            {"max_retry": 1, "retry_on": ["exit 75"]},
            "'exit 75' is no failure of an attempt; did you mean 'exit:N'?",
        ),
        ({"max_retry": 1, "retry_on": ["exit:0"]}, "did you mean 'exit:N'? (N: 1 to 255)"),
        ({"max_retry": 1, "retry_on": ["exit:256"]}, "did you mean 'exit:N'? (N: 1 to 255)"),
        ({"max_retry": 1, "retry_on": ["HungSilent"]}, "needs health_params"),
        ({"retry_on": ["Hung"]}, "retry_on needs max_retry, the number of new attempts"),
        ({"alarm": ["nan -> halt"]}, "column 8: 'halt' stands behind 'nan ->'"),
        ({"alarm": "nan -> halt"}, "column 8: 'halt' stands behind 'nan ->'"),
        ({"alarm": ["nan -> stop"] * 21}, "has 21 entries; at most 20 are allowed"),
        ({"alarm": "nan -> stop", "observe": False}, "alarm needs observe=True"),
        ({"alarm": "nan -> retry"}, "needs max_retry, the number of new attempts"),
        ({"alarm": "nan -> retry", "max_retry": 0}, "needs max_retry"),
        (
            {"alarm": "nan->retry", "max_retry": 1, "checkpoint_dir": "c"},
            "in the job's own directory only: leave checkpoint_dir out",
        ),
        ({"retry_reset_steps": 0}, "greater than or equal to 1"),
        ({"retry_reset_steps": 5, "observe": False}, "needs observe=True"),
    ],
)
def test_a_wrong_field_is_refused_and_named(fields: dict[str, object], told: str) -> None:
    with pytest.raises(ValidationError) as refused:
        JobSpec.model_validate({"script": "train.py"} | fields)
    assert told in str(refused.value)


def test_one_rule_is_a_list_of_one() -> None:
    assert JobSpec(script="train.py", alarm="nan -> stop").alarm == ["nan -> stop"]


def test_a_rule_of_a_newer_server_is_shown_as_it_was_sent() -> None:
    fields = {"script": "train.py", "alarm": ["loss sings -> dance"]}
    assert JobSpec.model_validate(fields, context=STORED).alarm == fields["alarm"]


@pytest.mark.parametrize("value", ["a\nb\n", "$HOME", "'\"`", "", " ", "ü\ud7ff", "=", "\r\t\x1b"])
def test_a_value_may_hold_whatever_a_process_can_receive(value: str) -> None:
    spec = JobSpec(script="train.py", args=[value], flags={"x": value}, env_variables={"A": value})
    assert (spec.environment()["A"], spec.command()[1:]) == (value, [value, f"--x={value}"])
    code = CodeInPlace()
    request = SubmitRequest(
        spec=spec,
        code=code,
        submitter=Submitter(environment={"A": value}),
        secret_values={"B": value},
    )
    assert SubmitRequest.model_validate_json(request.model_dump_json()) == request


@pytest.mark.parametrize(
    "variables", [{"A=B": "hush"}, {"": "hush"}, {"A\0": "hush"}, {"A": "hush\0"}]
)
@pytest.mark.parametrize("field", ["environment", "secret_values"])
def test_a_variable_that_no_process_can_receive_is_refused_without_its_value(
    field: str, variables: dict[str, str]
) -> None:
    body: dict[str, Any] = {"spec": {"script": "a.py"}, "code": {"mode": "in_place"}}
    body |= {field: variables} if field == "secret_values" else {"submitter": {field: variables}}
    with pytest.raises(ValidationError) as refused:
        SubmitRequest.model_validate(body)
    message = invalid_request(refused.value, SubmitRequest).message
    assert "can't be set" in message
    assert "hush" not in message


def test_a_name_of_fifty_characters_is_fine() -> None:
    check_name("a" * 50)


def test_command_appends_args_then_flags() -> None:
    spec = JobSpec(
        script="train.py --a 1", args=["x y", ""], flags={"lr": 0.1, "amp": None, "on": True}
    )
    assert spec.command() == ["train.py", "--a", "1", "x y", "", "--lr=0.1", "--amp", "--on=True"]


def test_values_of_variables_that_look_secret_are_masked_in_a_copy() -> None:
    spec = JobSpec(script="a.py", env_variables={"HF_TOKEN": "x", "WANDB_API_KEY": "y", "DEPTH": 3})
    assert spec.masked().env_variables == {"HF_TOKEN": MASK, "WANDB_API_KEY": MASK, "DEPTH": 3}
    assert spec.env_variables["HF_TOKEN"] == "x"


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"script": "/a/train.py --x 1"}, "/a/train.py"),
        ({"script": "bash job.sh"}, None),
        ({"script": "train.py", "type": "binary"}, None),
    ],
)
def test_which_scripts_are_python_files(fields: dict[str, str], path: str | None) -> None:
    assert JobSpec.model_validate(fields).python_script == path


def test_requests_are_strict_and_answers_lenient() -> None:
    request = {"spec": {"script": "a.py"}, "code": {"mode": "in_place"}}
    with pytest.raises(ValidationError):
        SubmitRequest.model_validate(request | {"new": 1})
    answer = {
        "name": "a",
        "id": "1",
        "owner": "me",
        "version": 1,
        "runtime": "local",
        "state": "PENDING",
        "reason": "Queued",
        "spec": {"script": "a.py"},
        "code": {"mode": "in_place"},
        "created_at": "2026-01-01T00:00:00Z",
    }
    assert JobInfo.model_validate(answer | {"new": 1}).state == "PENDING"


@pytest.mark.parametrize("kind", REFUSED_TYPES)
def test_a_type_of_the_platform_that_is_not_offered_is_refused_with_the_way_out(kind: str) -> None:
    with pytest.raises(ValidationError) as caught:
        JobSpec(script="a.py", type=kind)
    message = str(invalid_request(caught.value, JobSpec))
    assert f"type='{kind}': does not run here" in message
    assert "type='" in message.split("does not run here", 1)[1]


def test_the_platform_s_spelling_of_a_member_is_the_member() -> None:
    assert [PriorityClass.low, PriorityClass.medium, PriorityClass.high] == [
        "low",
        "medium",
        "high",
    ]
    assert len(PriorityClass) == 5
    assert (HealthAction.restart, HealthSubAction.notify) == ("restart", "notify")
    assert JobSpec(script="a.py", type=PlatformType.torchrun).type is JobType.TORCHRUN


def test_every_failure_of_an_attempt_can_be_retried_on() -> None:
    words = [*FAILURES, "exit:1", "exit:255"]
    JobSpec(
        script="a.py",
        max_retry=0,
        retry_on=words,
        health_params={"log_period": 1, "action": "delete"},
    )


@pytest.mark.parametrize(
    ("bounds", "holds"),
    [
        ({}, True),
        ({"elastic_min_workers": 1, "elastic_max_workers": 3}, True),
        ({"elastic_min_workers": "default", "elastic_max_workers": "default"}, True),
        ({"elastic_max_workers": 9}, True),
        ({"elastic_min_workers": 0}, False),
        ({"elastic_min_workers": 4}, False),
        ({"elastic_max_workers": 2}, False),
    ],
)
def test_elastic_bounds_enclose_the_workers_where_the_type_reads_them(
    bounds: dict[str, object], holds: bool
) -> None:
    JobSpec(script="a.py", n_workers=3, **bounds)
    with nullcontext() if holds else pytest.raises(ValidationError, match="n_workers=3"):
        JobSpec(script="a.py", n_workers=3, type="pytorch_elastic", **bounds)
