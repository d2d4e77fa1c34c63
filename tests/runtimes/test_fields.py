"""The table of fields is complete for every runtime, and a field without effect has one notice."""

import pytest

from client_lib.errors import InvalidRequest, NotSupported
from client_lib.spec.job import JobSpec
from server_stub.runtimes.fields import FIELDS, check_command, check_paths, ignored


def test_every_field_of_the_spec_has_a_row() -> None:
    assert FIELDS.keys() == JobSpec.model_fields.keys()


def test_a_field_that_asks_for_nothing_has_no_notice() -> None:
    asked = JobSpec(
        script="t.py", warm=False, elastic_min_workers="default", logs_dir=None, region=None
    )
    assert ignored(asked, "kubernetes") == []
    assert ignored(JobSpec(script="t.py", internet=False), "local") == [
        "internet=False has no effect here: the job reaches what this machine reaches"
    ]


def test_a_command_of_an_elastic_job_is_rejected() -> None:
    check_command(JobSpec(script="t.py", type="pytorch_elastic"))
    check_command(JobSpec(script="function()", type="pytorch_elastic"))
    with pytest.raises(NotSupported) as caught:
        check_command(JobSpec(script="bash t.sh", type="pytorch_elastic"))
    assert caught.value.message == (
        "type 'pytorch_elastic' starts a .py file, and script='bash t.sh' is a command"
    )
    assert caught.value.hint


def test_a_relative_path_of_a_request_without_a_folder_is_rejected() -> None:
    for spec in (
        {"script": "train.py"},
        {"script": "/t.py", "checkpoint_dir": "ckpt"},
        {"script": "/t.py", "working_dir": "x"},
    ):
        with pytest.raises(InvalidRequest, match="names no folder"):
            check_paths(JobSpec.model_validate(spec), None)
    check_paths(JobSpec(script="echo hi"), None)
