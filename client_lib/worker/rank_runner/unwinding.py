"""Finds the exception from which the main thread unwinds."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_CHAIN_MAX = 100
"""Most exceptions of a chain that are looked at."""


def unwinding(frame: Any) -> BaseException | None:
    """The exception that leaves one of the main thread's frames; None: there is none, or it is
    handled there. The traceback of an exception begins in the frame that it has reached."""
    errors: list[BaseException] = []
    error = sys.exc_info()[1]
    while error is not None and len(errors) < _CHAIN_MAX:
        errors.append(error)
        error = error.__context__
    while frame is not None:
        here = [
            each for each in errors if each.__traceback__ and each.__traceback__.tb_frame is frame
        ]
        blocks = _entered_blocks(frame) if here else []
        for error, leaves in zip(here, blocks):  # noqa: B905  # not in 3.8
            if leaves:
                return error
        frame = frame.f_back
    return None


def _entered_blocks(frame: Any) -> list[bool]:
    """The blocks that an exception enters (`finally`, the line of a `with`, `except`) around the
    line of a frame, innermost first. For each block: True if the exception leaves it again. An
    exception leaves an `except` only if that ends with `raise` or an exit."""
    import ast

    try:
        with open(frame.f_code.co_filename, "rb") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):  # there is no source, as for a cell of a notebook
        return [True]
    found: list[bool] = []
    for node in ast.walk(tree):  # outer ones first
        block = _block(node)
        if block is None:
            continue
        first, last, leaves = block
        if first <= frame.f_lineno <= last:
            found.insert(0, leaves)
    return found


def _block(node: Any) -> tuple[int, int, bool] | None:
    """First line, last line, and whether exceptions leave the block; None: exceptions do not enter
    this node."""
    kind = type(node).__name__
    if kind in ("With", "AsyncWith"):
        if sys.version_info < (3, 10):  # the exit has the line that failed
            return node.lineno, node.end_lineno or 0, True
        return node.lineno, max(node.lineno, node.body[0].lineno - 1), True
    if kind == "ExceptHandler":
        return node.lineno, node.end_lineno or 0, _goes_on(node.body[-1])
    final: Any = getattr(node, "finalbody", None)
    if final:
        return final[0].lineno, final[-1].end_lineno, True
    return None


def _goes_on(statement: Any) -> bool:
    """True for `raise` and for a call of exit, sys.exit or os._exit."""
    called = getattr(getattr(statement, "value", None), "func", None)
    name = getattr(called, "attr", getattr(called, "id", None))
    return type(statement).__name__ == "Raise" or name in ("exit", "_exit")
