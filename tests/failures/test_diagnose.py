"""The meaning of the end of a rank."""

from pathlib import Path

import pytest

from client_lib.spec.states import Reason, State
from client_lib.spec.wire import Failure
from server_stub.failures import exit_meaning, explain
from tests.kit.jobs import job_info


@pytest.mark.parametrize(
    ("exit_code", "words"),
    [
        (137, "killed, most often out of memory"),
        (139, "segmentation fault"),
        (143, "terminated"),
        (134, "aborted"),
        (126, "can't be executed"),
        (127, "command not found"),
        (2, "wrong usage"),
        (1, "an error in the script"),
        (142, "SIGALRM"),
    ],
)
def test_what_an_end_means(exit_code: int, words: str) -> None:
    assert words in (exit_meaning(exit_code) or "")


def test_an_end_without_a_meaning_has_none() -> None:
    assert exit_meaning(0) is None
    assert exit_meaning(42) is None
    assert exit_meaning(255) is None


def test_the_end_of_a_setup_has_a_hint_and_no_meaning() -> None:
    info = job_info("train", State.FAILED, Reason.SETUP_FAILED)
    setup = Failure(
        worker=2, exit_code=1, last_lines=["ModuleNotFoundError: No module named 'cv2'"]
    )
    found = explain(setup, info, lambda: "/env/python")
    assert found == setup.model_copy(update={"hint": found.hint})
    assert "/env/python -m pip install" in (found.hint or "")
    assert (
        explain(setup.model_copy(update={"rank": 0}), info, lambda: None).meaning
        == "an error in the script"
    )


def test_ones_own_package_is_not_to_be_installed(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    info = job_info("train", State.FAILED, Reason.START_FAILED)
    spec = info.spec.model_copy(update={"script": f"{tmp_path}/pkg/deep/train.py"})
    own = info.model_copy(update={"spec": spec})
    failure = Failure(rank=0, exit_code=1, exception="ModuleNotFoundError: No module named 'pkg'")
    hint = explain(failure, own, lambda: None).hint or ""
    assert "`python -m pkg.deep.train`" in hint
    assert f"{{'PYTHONPATH': '{tmp_path}'}}" in hint
    other = failure.model_copy(update={"exception": "ModuleNotFoundError: No module named 'xyz'"})
    assert "requirements=['xyz']" in (explain(other, own, lambda: None).hint or "")
