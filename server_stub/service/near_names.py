"""Finds the names that a mistyped name may mean. Pure."""

import difflib
import heapq
from collections.abc import Collection, Iterable
from itertools import takewhile
from operator import eq

_COMPARED = 5
"""Names that difflib compares: it takes some milliseconds for each that is like the typed one."""


def near_names(typed: str, known: Collection[str]) -> list[str]:
    """The names that are like `typed`, the most like first, at most 3. Of very many names those are
    compared that share the longest beginning and end with `typed`."""

    def shared(name: str) -> int:
        return _same(typed, name) + _same(reversed(typed), reversed(name))

    return difflib.get_close_matches(typed, heapq.nlargest(_COMPARED, known, key=shared))


def _same(first: Iterable[str], second: Iterable[str]) -> int:
    """Number of characters from the beginning on that are the same."""
    return sum(takewhile(bool, map(eq, first, second)))
