"""Finishes the files that a script has left open."""

from __future__ import annotations

import io

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

BEFORE_TORCH: list[Any] = []
"""Files that were open before torch was imported: the import freezes all objects, and the garbage
collector does not list frozen objects."""


def open_files() -> list[Any]:
    """The files among the objects that the garbage collector lists."""
    import gc

    return [thing for thing in gc.get_objects() if issubclass(type(thing), io.IOBase)]


def finish_files(files: list[Any], *kinds: type | str) -> None:
    """Flush the files whose type is among `kinds`; close the files whose type is of a module that
    `kinds` names."""
    for file in files:
        try:
            if type(file).__module__ in kinds and not file.closed:
                file.close()
            elif type(file) in kinds and not file.closed:
                file.flush()
        except Exception:  # noqa: BLE001  (the interpreter ignores these, too)
            pass
