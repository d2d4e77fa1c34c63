"""Options of ours behind the script, which a script may or may not declare."""

from __future__ import annotations

import pytest

from client_lib.cli.submit_steps import undeclared


@pytest.mark.parametrize(
    "source",
    [
        "parser.add_argument('-N', '--n-workers', type=int)",
        "@click.option('--n-workers', '-N')\ndef main(): ...",
        "class Arguments:\n    n_workers: int = 4\n    N: int = 1",
        "def main(n_workers=1, N=2): ...",
        "'usage: train.py [--n-workers, -N ]'",
    ],
)
def test_a_script_declares_an_option_in_many_ways(source: str) -> None:
    assert undeclared(source, ["--n-workers", "-N"]) == []


def test_an_option_that_the_script_does_not_mention_is_found() -> None:
    assert undeclared("parser.add_argument('--lr')", ["--n-workers", "--name"]) == ["--n-workers", "--name"]
