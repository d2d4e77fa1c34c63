"""The committed reference is what the commands say today."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from client_lib.cli.app import COMMANDS
from client_lib.cli.commands.init import TRAIN

DOCUMENT = Path(__file__).parents[2] / "docs" / "cli.md"


@pytest.fixture(scope="module")
def reference() -> str:
    """Made by a process of its own: click keeps the help option that a command was first asked with."""
    line = [sys.executable, str(DOCUMENT.with_name("cli_reference.py"))]
    return subprocess.run(line, capture_output=True, text=True, check=True).stdout


def test_the_reference_is_up_to_date(reference: str) -> None:
    assert DOCUMENT.read_text() == reference, "run: python docs/cli_reference.py > docs/cli.md"


def test_every_command_is_in_it(reference: str) -> None:
    for name in COMMANDS:
        assert f"### `client-lib {name}`" in reference


def test_no_page_for_users_names_the_package_of_the_server() -> None:
    pages = {*DOCUMENT.parent.glob("*.md"), DOCUMENT.parents[1] / "README.md"} - {DOCUMENT.with_name("architecture.md")}
    assert [page.name for page in pages if "server_stub" in page.read_text()] == []


def test_the_tutorial_shows_the_first_example() -> None:
    assert TRAIN in DOCUMENT.with_name("tutorial.md").read_text()
