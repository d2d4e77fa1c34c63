"""Finds the names that a mistyped name may mean. Pure."""

import difflib
import heapq
from collections.abc import Collection
from os.path import commonprefix

_COMPARED = 5
"""Names that difflib compares: it takes some milliseconds for each that is like the typed one."""


def near_names(typed: str, known: Collection[str]) -> list[str]:
    """The names that are like `typed`, the most like first, at most 3. Of very many names those are
    compared that share the longest beginning and end with `typed`."""

    def shared(name: str) -> int:
        return len(commonprefix((typed, name))) + len(commonprefix((typed[::-1], name[::-1])))

    return difflib.get_close_matches(typed, heapq.nlargest(_COMPARED, known, key=shared))
