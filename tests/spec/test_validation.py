"""Findings of the validation read as sentences that name the field, the
value and what is allowed.
"""

import pytest
from pydantic import BaseModel, ConfigDict, ValidationError

from client_lib.spec.job import JobSpec
from client_lib.spec.refusals import invalid_request
from client_lib.spec.request import SubmitRequest


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"n_workers": 0}, "n_workers=0: input should be greater than or equal to 1"),
        ({"n_workers": "2"}, "n_workers: '2' is not a whole number; write it without quotes"),
        ({"n_wokers": 2}, "unknown field 'n_wokers'; did you mean 'n_workers'?"),
        ({"script": None}, "script=None: input should be a valid string"),
        (
            {"processes_per_worker": 0.5},
            "processes_per_worker: 0.5 is not a whole number; write it without quotes",
        ),
        ({"name": "A"}, "name: 'A' is not a DNS label"),
        ({"script": ""}, "script='': is empty"),
        ({"retry_on": ["Hung"]}, "retry_on needs max_retry"),
        ({"script": "a.py && b"}, "script: 'a.py && b' holds '&'"),
        ({"script": "a.py 'b"}, "script: \"a.py 'b\" can't be split into words"),
        (
            {"env_variables": {"RANK": 1, "HF_TOKEN": "hush"}},
            "env_variables: RANK is set for each process",
        ),
    ],
)
def test_each_finding_is_one_sentence(fields: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValidationError) as found:
        JobSpec.model_validate({"script": "a.py"} | fields)
    assert invalid_request(found.value, JobSpec).message.startswith(sentence)


def test_a_field_inside_the_spec_is_named_with_its_path() -> None:
    with pytest.raises(ValidationError) as found:
        SubmitRequest.model_validate(
            {"spec": {"script": "a.py", "n_wokers": 1}, "code": {"mode": "in_place"}}
        )
    assert invalid_request(found.value, SubmitRequest).message == (
        "unknown field 'spec.n_wokers'; did you mean 'n_workers'?"
    )


def test_a_missing_field_is_named() -> None:
    with pytest.raises(ValidationError) as found:
        JobSpec.model_validate({})
    assert invalid_request(found.value, JobSpec).message == "script is missing"


def test_a_long_value_is_cut() -> None:
    with pytest.raises(ValidationError) as found:
        JobSpec.model_validate({"script": ["x" * 10000]})
    assert len(invalid_request(found.value, JobSpec).message) < 200


def test_thousands_of_findings_are_cut() -> None:
    with pytest.raises(ValidationError) as found:
        JobSpec.model_validate({"script": "a.py", "env_variables": dict.fromkeys(range(500), 1)})
    lines = invalid_request(found.value, JobSpec).message.splitlines()
    assert (len(lines), lines[-1]) == (21, "and more of this kind")


def test_a_key_that_can_not_be_printed_is_written_with_escapes() -> None:
    with pytest.raises(ValidationError) as found:
        JobSpec.model_validate({"script": "a.py", "labels": {"\x1b\n": "x"}})
    assert invalid_request(found.value, JobSpec).message.startswith(r"labels.'\x1b\n'")


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")

    size: int = 0


class _Whole(BaseModel):
    parts: list[_Part] = []
    other: int = 0


def test_a_misspelt_field_in_a_list_is_offered_those_of_its_own_model() -> None:
    with pytest.raises(ValidationError) as found:
        _Whole.model_validate({"parts": [{"sice": 1}]})
    assert (
        invalid_request(found.value, _Whole).message
        == "unknown field 'parts.0.sice'; did you mean 'size'?"
    )
    with pytest.raises(ValidationError) as found:
        _Whole.model_validate({"parts": [{"x": 1}]})
    assert (
        invalid_request(found.value, _Whole).message == "unknown field 'parts.0.x'; there are: size"
    )
