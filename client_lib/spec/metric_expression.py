"""The regular expression of a job that finds metrics in lines, the field `metrics`.

Imports nothing that takes long to load: a process of its own checks an expression for the server.
"""

import re


def check(expression: str) -> None:
    """Check that `expression` is a regular expression with a named group for a metric. Raises
    ValueError. Compiling it may take minutes. The time for a line can't be foreseen; the launcher
    limits that time."""
    try:
        names = re.compile(expression).groupindex
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"is no regular expression: {error}") from None
    if not set(names) - {"step"}:
        raise ValueError("needs a named group for each metric: `loss: (?P<loss>[0-9.]+)`")
