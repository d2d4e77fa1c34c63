"""Finds options of client-lib that stand behind SCRIPT, and that the script does not declare. Pure."""

from __future__ import annotations

import ast


def undeclared(source: bytes, options: list[str]) -> list[str]:
    """The options that a script does not mention: neither in a text, as in `add_argument("--name")`, nor as a name in
    its code, from which some parsers make options. []: also for a source that is no Python.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):  # the run of the script reports it
        return []
    mentioned = {name for node in ast.walk(tree) for name in _names(node)}
    return [option for option in options if option not in mentioned and _plain(option) not in mentioned]


def _names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Constant):
        return node.value.replace(",", " ").replace("[", " ").split() if isinstance(node.value, str) else []
    found = getattr(node, "id", None) or getattr(node, "arg", None) or getattr(node, "attr", None)
    return [found] if isinstance(found, str) else []


def _plain(option: str) -> str:
    return option.lstrip("-").replace("-", "_")
