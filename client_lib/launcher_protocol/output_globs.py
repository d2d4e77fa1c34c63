"""Globs that name the files which ranks write and the server keeps for download.

`*`, `?` and `[...]` match within one name, `**` any number of folders; a glob that matches a folder
matches all files in it. Paths are relative, with slashes. (The standard library's `glob` walks by
itself, and the `*` of its `fnmatch` also matches slashes.)
"""

from fnmatch import fnmatchcase
from typing import Sequence, Tuple

ALL = "**"
_Parts = Tuple[str, ...]

# caches, version control, environments; client_lib.submit.ignore adds names that code does not hold
_NEVER = frozenset(
    (".git", ".hg", ".svn", ".venv", ".tox", ".nox", "node_modules", ".DS_Store")
    + (
        "__pycache__",
        ".mypy_cache",
        ".ruff_cache",
        ".pytest_cache",
        ".hypothesis",
        ".ipynb_checkpoints",
    )
)
ENVIRONMENT_MARKS = ("pyvenv.cfg", "conda-meta")  # files of a virtual environment


class Patterns:
    """Several globs; a path matches if it matches any glob."""

    def __init__(self, globs: Sequence[str]) -> None:
        self._all = [_split(glob) for glob in globs]

    def match(self, path: str) -> bool:
        parts = _split(path)
        return any(_matches(pattern, parts) for pattern in self._all)

    def may_lie_below(self, folder: str) -> bool:
        for pattern in self._all:
            for part, name in zip(pattern, _split(folder)):  # noqa: B905  # as far as the shorter goes; `strict` is not in 3.8
                if part == ALL:
                    return True
                if not fnmatchcase(name, part):
                    break
            else:
                return True
        return False


def never(name: str) -> bool:
    """A file or folder of this name is not kept, even if a glob matches."""
    return name in _NEVER or name.endswith((".pyc", ".pyo"))


def _split(path: str) -> _Parts:
    return tuple(part for part in path.split("/") if part not in ("", "."))


def _matches(pattern: _Parts, path: _Parts) -> bool:
    """A pattern that ends before the path matches a folder above it."""
    if not pattern:
        return True
    if pattern[0] == ALL:
        return any(_matches(pattern[1:], path[skipped:]) for skipped in range(len(path)))
    return bool(path) and fnmatchcase(path[0], pattern[0]) and _matches(pattern[1:], path[1:])
