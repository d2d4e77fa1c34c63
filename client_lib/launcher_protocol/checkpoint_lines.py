"""The lines of the stream `metrics` in which a launcher tells which checkpoints its job has.

    [null, "checkpoint", null]                 all lines before count no more: a new list begins
    [null, "checkpoint", ["/path", "torch", 400, 5000, 1764398000.5, "", "complete", true, []]]
    [null, "checkpoint", ["/path"]]            it was removed

An item has the fields of `SeenCheckpoint` in their order; a later item of a path replaces the
earlier one.
"""

import json
import os
from typing import List, NamedTuple, Optional, TypeVar

CHECKPOINT = "checkpoint"
"""Second value in a line of metrics that tells of a checkpoint."""
COMPLETE = "complete"
WRITING = "writing"
"""It has no end yet, and it changes, or the ranks of its job run."""
DAMAGED = "damaged"
_STATES = (COMPLETE, WRITING, DAMAGED)
_PATH_MAX = 4096
_TEXT_MAX = 500
POINTERS_MAX = 10
_STEP_MAX = 10**15
_SIZE_MAX = 2**63
_TIME_MAX = 2**37
N = TypeVar("N", int, float)


class SeenCheckpoint(NamedTuple):
    """A checkpoint as a launcher has seen it last."""

    path: str
    """Absolute path, as the ranks see it."""
    format: str
    step: Optional[int]
    """None: neither its name nor its content tells."""
    size: int
    """Bytes of all its files."""
    modified: float
    """Time of its newest change, in seconds since 1970."""
    missing: str
    """The part that it lacks, as a clause; "" if it is complete."""
    state: str
    """COMPLETE, WRITING or DAMAGED."""
    own: bool
    """True if it was changed while the ranks of this attempt ran."""
    pointers: List[str]
    """Names of what points to it, such as `latest` or a link."""


def begin_line() -> bytes:
    """The line with which a new list begins."""
    return _line(None)


def line_of(seen: SeenCheckpoint) -> bytes:
    return _line(list(seen))


def removed_line(path: str) -> bytes:
    return _line([path])


def told(text: str) -> str:
    """A text with a path, as every answer can hold it: a byte that is no UTF-8 becomes `\\xNN`."""
    return os.fsencode(text).decode("utf-8", "backslashreplace")


def _line(item: object) -> bytes:
    return json.dumps([None, CHECKPOINT, item]).encode() + b"\n"


def parse(item: object) -> SeenCheckpoint:
    """The checkpoint in the third value of a line. Raises ValueError, TypeError or OverflowError
    for what no launcher writes."""
    if not isinstance(item, list) or len(item) != len(SeenCheckpoint._fields):
        raise ValueError("no checkpoint")
    path, kind, step, size, modified, missing, state, own, pointers = item
    if state not in _STATES:
        raise ValueError("no state of a checkpoint")
    if not isinstance(pointers, list) or len(pointers) > POINTERS_MAX:
        raise ValueError("no list of pointers")
    return SeenCheckpoint(
        _text(path, _PATH_MAX),
        _text(kind, _TEXT_MAX),
        None if step is None else _number(int(step), _STEP_MAX),
        _number(int(size), _SIZE_MAX),
        _number(float(modified), _TIME_MAX),
        _text(missing, _TEXT_MAX),
        state,
        bool(own),
        [_text(name, _TEXT_MAX) for name in pointers],
    )


def _text(value: object, most: int) -> str:
    """A text that every answer can hold, without halves of characters."""
    if not isinstance(value, str) or len(value) > most:
        raise ValueError("no text, or too long")
    return value.encode("utf-8", "replace").decode()


def _number(value: N, most: int) -> N:
    if not 0 <= value <= most:
        raise ValueError("out of bounds")
    return value
