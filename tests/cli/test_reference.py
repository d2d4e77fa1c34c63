"""The committed reference is what the commands say today."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import client_lib
import server_stub
from client_lib.cli.app import COMMANDS
from client_lib.cli.commands.setup import TRAIN

DOCUMENT = Path(__file__).parents[2] / "docs" / "cli.md"


@pytest.fixture(scope="module")
def reference() -> str:
    """Made by a process of its own: click keeps the help option that a
    command was first asked with.
    """
    line = [sys.executable, str(DOCUMENT.with_name("cli_reference.py"))]
    return subprocess.run(line, capture_output=True, text=True, check=True).stdout


def test_the_reference_is_up_to_date(reference: str) -> None:
    assert DOCUMENT.read_text() == reference, "run: python docs/cli_reference.py > docs/cli.md"


def test_every_command_is_in_it(reference: str) -> None:
    for name in COMMANDS:
        assert f"### `client-lib {name}`" in reference


def test_the_help_lists_the_ten_common_commands_first_and_each_under_one_heading(
    reference: str,
) -> None:
    whole = reference.split("## `client-lib`")[1].split("```")[1]
    shown = re.findall(r"^(?:  ([a-z][\w-]*) {2,}\S|([A-Z]\w+):$)", whole, re.MULTILINE)
    headings = [heading for _, heading in shown if heading]
    assert headings[-5:] == ["Start", "Watch", "Understand", "Compare", "Operate"]
    names = [name for name, _ in shown if name]
    assert names == list(COMMANDS)
    common = ["submit", "run", "resubmit", "init", "list", "status", "logs", "wait", "cancel"]
    assert names[:10] == [*common, "download"]


def test_no_page_for_users_names_the_package_of_the_server() -> None:
    pages = {*DOCUMENT.parent.glob("*.md"), DOCUMENT.parents[1] / "README.md"} - {
        DOCUMENT.with_name("architecture.md"),
        DOCUMENT.with_name("changes.md"),
    }
    assert [page.name for page in pages if "server_stub" in page.read_text()] == []


def test_no_message_names_the_package_of_the_server() -> None:
    folders = [Path(client_lib.__file__).parent, Path(server_stub.__file__).parent]
    texts = [
        text
        for folder in folders
        for file in folder.rglob("*.py")
        for text in _messages(ast.parse(file.read_text()))
    ]
    assert len(texts) > 1000
    assert [text for text in texts if "server_stub" in text and " import " not in text] == []


def _messages(tree: ast.Module) -> Iterator[str]:
    """Texts of several words that are no docstrings."""
    alone = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and " " in node.value
            and node not in alone
        ):
            yield node.value


def test_the_tutorial_shows_the_first_example() -> None:
    assert TRAIN in DOCUMENT.with_name("tutorial.md").read_text()
