"""Clients and servers of released versions work with the servers and clients of today, by replayed
golden files.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from client_lib.errors import BadResponse
from tests.compat import golden, replay
from tests.compat.conversations import ALL
from tests.compat.golden import Conversation, Exchange
from tests.compat.record import recorded

FILES = sorted(golden.FOLDER.glob("*/*.json"))
SAMPLE = "a_failed_job_and_its_successor"

each_file = pytest.mark.parametrize(
    "file", FILES, ids=lambda file: f"{file.parent.name}-{file.stem}"
)


@pytest.fixture
def sample() -> Conversation:
    """A conversation of the newest version."""
    return golden.read(max(golden.FOLDER.iterdir()) / f"{SAMPLE}.json")


@each_file
def test_a_server_answers_the_requests_of_released_clients(file: Path, tmp_path: Path) -> None:
    _complain(file, list(replay.on_server(golden.read(file), tmp_path)))


@each_file
def test_a_client_reads_the_answers_of_released_servers(file: Path, tmp_path: Path) -> None:
    assert file.stem in ALL, f"the conversation of {file} is gone. {replay.WAY_OUT}"
    _complain(file, list(replay.on_client(file.stem, golden.read(file), tmp_path)))


@pytest.mark.parametrize("name", ALL)
def test_two_recordings_are_equal(name: str, tmp_path: Path) -> None:
    first, second = (_new(tmp_path / each) for each in ("first", "second"))
    assert recorded(name, first) == recorded(name, second)


def test_an_answer_without_a_recorded_field_is_told_by_its_name(
    sample: Conversation, tmp_path: Path
) -> None:
    changed = _with_changed_answer(sample, lambda body: body["spec"] | {"n_pods": 2})
    (first, *_) = list(replay.on_server(changed, tmp_path))
    assert "POST /api/v1/jobs: `spec.n_pods` is missing" in first


def test_an_answer_with_another_type_is_told_by_its_name(
    sample: Conversation, tmp_path: Path
) -> None:
    changed = _with_changed_answer(sample, lambda body: body["spec"] | {"n_workers": "2"})
    (first, *_) = list(replay.on_server(changed, tmp_path))
    assert "POST /api/v1/jobs: `spec.n_workers` is a number and was a string" in first


def test_new_fields_of_an_answer_are_no_difference(sample: Conversation, tmp_path: Path) -> None:
    changed = _with_changed_answer(sample, lambda body: {"script": body["spec"]["script"]})
    assert list(replay.on_server(changed, tmp_path)) == []


def test_a_client_that_needs_a_field_which_was_not_recorded_fails(
    sample: Conversation, tmp_path: Path
) -> None:
    def without_owner(answer: golden.Answer) -> None:
        del answer.body["json"]["owner"]

    changed = _changed(sample, without_owner)
    with pytest.raises(BadResponse, match="JobInfo"):
        list(replay.on_client(SAMPLE, changed, tmp_path))


def test_what_an_old_server_does_not_know_is_refused_by_its_name(
    sample: Conversation, tmp_path: Path
) -> None:
    for step in sample.steps:
        if isinstance(step, Exchange) and step.title == "POST /api/v1/jobs":
            del step.request.body["json"]["spec"]["n_workers"]
    with pytest.raises(ValueError, match=r"spec\.n_workers: unknown field"):
        list(replay.on_client(SAMPLE, sample, tmp_path))


def _complain(file: Path, found: list[str]) -> None:
    where = file.relative_to(golden.FOLDER.parents[2])
    assert not found, "\n".join(
        [f"{where} is not understood any more:", *found[:20], replay.WAY_OUT]
    )


def _with_changed_answer(
    sample: Conversation, spec: Callable[[dict[str, Any]], Any]
) -> Conversation:
    """The conversation with another `spec` in the answer to the first submit."""

    def change(answer: golden.Answer) -> None:
        answer.body["json"]["spec"] = spec(answer.body["json"])

    return _changed(sample, change)


def _changed(sample: Conversation, change: Callable[[golden.Answer], None]) -> Conversation:
    copy = golden.parsed(golden.as_text(sample))
    for step in copy.steps:
        if isinstance(step, Exchange) and step.title == "POST /api/v1/jobs":
            change(step.answer)
            break
    return copy


def _new(folder: Path) -> Path:
    folder.mkdir()
    return folder
