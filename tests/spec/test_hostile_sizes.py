"""Requests with very many wrong parts: the work for their errors has a bound."""

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from client_lib.spec.refusals import invalid_request
from client_lib.spec.request import GroupRequest, SessionRequest, SubmitRequest
from server_stub.http.api.public_v2.models import Credentials, RunJobRequest

ERRORS_MAX = 20_000
"""Most errors that pydantic makes of one request: 0.1 s of work."""
MANY = {f"k{number}": 1 for number in range(200_000)}
JOB: dict[str, Any] = {
    "spec": {"script": "echo", "type": "binary"},
    "code": {"mode": "in_place"},
}
MEMBER = {f"k{number}": 1 for number in range(18)}


def with_spec(**fields: Any) -> dict[str, Any]:
    return {**JOB, "spec": {**JOB["spec"], **fields}}


@pytest.mark.parametrize(
    ("model", "request_"),
    [
        (SubmitRequest, JOB | MANY),
        (SubmitRequest, with_spec(**MANY)),
        (SubmitRequest, JOB | {"code": JOB["code"] | MANY}),
        (SubmitRequest, JOB | {"submitter": MANY}),
        (SubmitRequest, JOB | {"submitter": {"environment": MANY}}),
        (SubmitRequest, JOB | {"submitter": {"environment": dict(list(MANY.items())[:10_000])}}),
        (SubmitRequest, JOB | {"secret_values": MANY}),
        (SubmitRequest, with_spec(args=[1] * 10_000)),
        (SubmitRequest, with_spec(args=[1] * 200_000)),
        (SubmitRequest, with_spec(flags={name: [] for name in list(MANY)[:1000]})),
        (SubmitRequest, with_spec(labels=MANY)),
        (SubmitRequest, with_spec(volumes=[MANY] * 5)),
        (SubmitRequest, with_spec(health_params=MANY)),
        (GroupRequest, {"name": "g", "request": JOB, "members": [MEMBER] * 1000}),
        (GroupRequest, {"name": "g", "request": JOB, "members": [{"args": [1] * 9000}] * 1000}),
        (GroupRequest, {"name": "g", "request": JOB | MANY, "members": [MANY] * 2}),
        (SessionRequest, {"argv": [1] * 10_000} | MEMBER),
        (SessionRequest, MANY),
        (Credentials, MANY),
        (RunJobRequest, MANY),
        (RunJobRequest, {"flags": MANY, "env_variables": MANY}),
    ],
)
def test_very_many_wrong_parts_make_few_errors(
    model: type[BaseModel], request_: dict[str, Any]
) -> None:
    with pytest.raises(ValidationError) as raised:
        model.model_validate(request_)
    assert 0 < raised.value.error_count() <= ERRORS_MAX
    assert len(str(invalid_request(raised.value, model))) < 30_000


def test_a_field_that_is_misspelt_is_still_named() -> None:
    with pytest.raises(ValidationError) as raised:
        SubmitRequest.model_validate(with_spec(**dict(list(MANY.items())[:15]), n_worker=2))
    assert "did you mean 'n_workers'?" in str(invalid_request(raised.value, SubmitRequest))
