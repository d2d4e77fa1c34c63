"""The committed reference is what the commands say today."""

from __future__ import annotations

from pathlib import Path

from client_lib.cli import reference
from client_lib.cli.app import COMMANDS

DOCUMENT = Path(__file__).parents[2] / "docs" / "cli.md"


def test_the_reference_is_up_to_date() -> None:
    assert DOCUMENT.read_text() == reference.text(), "run: python -m client_lib.cli.reference > docs/cli.md"


def test_the_short_helps_are_those_of_the_commands() -> None:
    for name, (_, short) in COMMANDS.items():
        assert f"`client-lib {name}`" in reference.text()
        assert short.endswith(".")
