"""Asks the user of a terminal before a command does what cannot be undone."""

import sys

import typer

from client_lib.errors import InvalidRequest


def agreed(question: str, otherwise: str) -> bool:
    """The answer on a terminal. Raises InvalidRequest where nobody can answer;
    `otherwise` is the line to write.
    """
    if not has_terminal():
        raise InvalidRequest(
            f"{question} There is no terminal to answer", hint=f"without one: {otherwise}"
        )
    return typer.confirm(question, err=True)


def has_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()
