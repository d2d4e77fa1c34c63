"""The meaning of the end of a rank."""

from __future__ import annotations

import pytest

from server_stub.failures import exit_meaning


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
