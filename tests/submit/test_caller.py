import sys

import pytest

from client_lib.errors import InvalidRequest
from client_lib.spec.job import JobSpec
from client_lib.spec.request import CodeInPlace, Submitter
from client_lib.submit.caller import gpu_bound, submitter
from client_lib.submit.request import _request


@pytest.mark.parametrize(
    ("environ", "bound"),
    [
        ({}, None),
        ({"CUDA_VISIBLE_DEVICES": "0,2"}, ["0", "2"]),
        ({"CUDA_VISIBLE_DEVICES": " GPU-ab , GPU-cd"}, ["GPU-ab", "GPU-cd"]),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, []),
        ({"CUDA_VISIBLE_DEVICES": "1,-1,2"}, ["1"]),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "0,2-4"}, ["0", "2", "3", "4"]),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "0-3", "SLURM_STEP_GPUS": "1"}, ["1"]),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "0-3", "CUDA_VISIBLE_DEVICES": "2"}, ["2"]),
        ({"SLURM_JOB_ID": "7"}, []),
    ],
)
def test_the_gpus_that_the_caller_may_use(environ: dict[str, str], bound: list[str] | None) -> None:
    assert gpu_bound(environ) == bound


def test_the_caller_s_interpreter_environment_and_directory_travel() -> None:
    environ = {"A": "1", "EMPTY": "", "LINES": "a\nb", "UNICODE": "ж", "BASH_FUNC_f%%": "() { :; }"}
    sent = submitter(environ, "/work")
    assert (sent.python, sent.environment, sent.working_dir) == (sys.executable, environ, "/work")
    assert sent.environment is not environ


def test_another_interpreter_can_be_given() -> None:
    assert submitter({}, "/", "/opt/python").python == "/opt/python"


def test_our_own_token_stays_here() -> None:
    assert submitter({"CLIENT_LIB_TOKEN": "t", "B": "2"}, "/").environment == {"B": "2"}


def test_bytes_that_are_no_text_are_named_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    sent = submitter({"BAD": b"\xff".decode("utf-8", "surrogateescape"), "GOOD": "1"}, "/")
    assert sent.environment == {"GOOD": "1"}
    assert "BAD" in caplog.text
    sent.model_dump_json()


def test_a_secret_that_json_can_t_carry_is_refused_without_its_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hush\udcff")
    spec, code = JobSpec(script="/train.py", secrets=["HF_TOKEN"]), CodeInPlace(mode="in_place")
    with pytest.raises(InvalidRequest, match="secret_values: 'HF_TOKEN' can't be set") as refused:
        _request(spec, code, Submitter(working_dir="/"))
    assert "hush" not in str(refused.value)
