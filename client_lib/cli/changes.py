"""Doing something to several jobs: each by its whole name, and an error of one doesn't spare the others."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import click

from client_lib.cli import exits, names, printer
from client_lib.cli.connection import Connection
from client_lib.errors import ClientLibError, NotFound


def each(connection: Connection, given: Sequence[str], change: Callable[[str], None]) -> int:
    """Call `change` for each job; the exit code of the first error."""
    codes = []
    for name in given:
        try:
            _one(connection, name, change)
        except ClientLibError as problem:
            printer.error(problem)
            codes.append(exits.of_error(problem))
    return next(iter(codes), exits.DONE)


def _one(connection: Connection, name: str, change: Callable[[str], None]) -> None:
    """A shortened name has to be confirmed: the job meant may have gone, and another one may begin with its name."""
    try:
        change(name)
    except NotFound:
        full = names.complete(name, connection.names)
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise NotFound(f"no job named {name}", hint=f"did you mean {full}? write the whole name") from None
        if click.confirm(f"no job named {name}; did you mean {full}?", err=True):
            change(full)
