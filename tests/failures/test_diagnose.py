"""The meaning of the end of a rank."""

from __future__ import annotations

import pytest

from client_lib.spec.wire import RankReport
from server_stub.failures import diagnose, exit_meaning


@pytest.mark.parametrize(
    ("exit_code", "signal", "words"),
    [
        (137, None, "killed, most often out of memory"),
        (None, 9, "killed, most often out of memory"),
        (139, None, "segmentation fault"),
        (None, 11, "segmentation fault"),
        (143, None, "terminated"),
        (134, None, "aborted"),
        (126, None, "can't be executed"),
        (127, None, "command not found"),
        (2, None, "wrong usage"),
        (1, None, "an error in the script"),
        (None, 14, "SIGALRM"),
    ],
)
def test_what_an_end_means(exit_code: int | None, signal: int | None, words: str) -> None:
    assert words in (exit_meaning(exit_code, signal) or "")


def test_an_end_without_a_meaning_has_none() -> None:
    assert exit_meaning(0, None) is None
    assert exit_meaning(42, None) is None
    assert exit_meaning(255, None) is None


def test_a_failure_has_the_code_that_a_shell_would_report() -> None:
    failure = diagnose(2, RankReport(rank=5, signal=9), None)
    assert (failure.worker, failure.rank, failure.exit_code, failure.signal) == (2, 5, 137, 9)
    assert failure.meaning == "killed, most often out of memory"
