"""Splits patches of git into their files. Pure."""

from __future__ import annotations

import re

_MOVED = re.compile(r"^(?:rename|copy) (?:from|to) (.+)$", re.MULTILINE)


def files(patch: str) -> list[tuple[list[str], str]]:
    """Names (of a file that was moved the old and the new one) and part of the patch, for each file in it."""
    parts = re.split(r"^(?=diff --git )", patch, flags=re.MULTILINE)[1:]
    return [(_names(part), part) for part in parts]


def _names(part: str) -> list[str]:
    header = part.partition("\n")[0].removeprefix("diff --git ")
    if moved := _MOVED.findall(part.partition("\n@@ ")[0]):
        return [_unquoted(name) for name in moved]
    before, after = _unquoted(header[: len(header) // 2]), _unquoted(header[len(header) // 2 + 1 :])
    return [after if before == after else after[2:]]  # the same: a patch without `a/` and `b/`


def _unquoted(name: str) -> str:
    """git quotes names as in C: `"b/\\320\\264"`."""
    if not (len(name) > 1 and name[0] == name[-1] == '"'):
        return name
    escaped = name[1:-1].encode("utf-8", "backslashreplace")
    return escaped.decode("unicode_escape", "replace").encode("latin-1", "replace").decode("utf-8", "replace")
