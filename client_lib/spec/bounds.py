"""Bounds of the values in a request, as types. Processes, file names and databases can hold each value within them.

An earlier version had no bounds, so stored requests are read without them: `model_validate_json(text, context=STORED)`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import isfinite
from typing import Annotated, Any, TypeVar

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema, core_schema

T = TypeVar("T")

STORED = {"stored": True}
"""Context for the validation of stored requests and of answers: the bounds of this version do not apply to them."""

ARGUMENT_MAX = 2**17 - 1  # Linux: the longest argument of a process
PATH_MAX = 4096
LABEL_MAX = 255  # a key and a value, in UTF-8, fit into a row of PostgreSQL's indexes
INTEGER_MAX = 2**128
MANY_MAX = 1000
ARGUMENTS_MAX = 10_000

_SURROGATE = re.compile("[\ud800-\udfff]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class Bound:
    """Metadata of a type: `check` raises ValueError for a value that is over the bound."""

    def __init__(self, check: Callable[[Any], None], *, first: bool = False, **schema: object) -> None:
        """`first`: check before the entries of a list or mapping are checked. `schema`: the bound as JSON Schema."""
        self._check, self._first, self._schema = check, first, schema

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        make = core_schema.with_info_before_validator_function if self._first else _after
        return make(self._checked, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return handler(schema) | self._schema

    def _checked(self, value: T, info: ValidationInfo) -> T:
        if info.context is not STORED:
            self._check(value)
        return value


_after = core_schema.with_info_after_validator_function


def within(least: int, most: int) -> Bound:
    """A number from `least` to `most`."""

    def check(value: int) -> None:
        if not least <= value <= most:
            raise ValueError(f"must be from {least} to {most}")

    return Bound(check, minimum=least, maximum=most)


def up_to(most: int, kind: str = "array") -> Bound:
    """A list, or with `kind="object"` a mapping, of up to `most` entries."""

    def check(value: Any) -> None:
        if isinstance(value, list | dict) and len(value) > most:
            raise ValueError(f"has {len(value)} entries; at most {most} are allowed")

    return Bound(check, first=True, **{"maxItems" if kind == "array" else "maxProperties": most})


def _text(most: int) -> Bound:
    return Bound(lambda value: check_text(value, most), maxLength=most, pattern=r"^[^\x00]*$")


def _line(most: int) -> Bound:
    return Bound(lambda value: check_line(value, most), maxLength=most, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")


def check_text(value: str, most: int) -> None:
    """Raises ValueError for a longer text, and for one that no process, file name or database can hold. The text is not
    shown: it may be a secret."""
    if not is_storable(value):
        raise ValueError("holds a NUL byte or half of a character; no process, file name or database can hold one")
    if len(value) > most:
        raise ValueError(f"has {len(value)} characters; at most {most} are allowed")


def is_storable(text: str) -> bool:
    """False for a text with a NUL byte or a lone surrogate, which UTF-8 can't encode."""
    return "\0" not in text and (text.isascii() or _SURROGATE.search(text) is None)


def check_line(value: str, most: int) -> None:
    """Raises ValueError as check_text does, and for a text with another control character, like a newline."""
    check_text(value, most)
    if found := _CONTROL.search(value):
        raise ValueError(f"holds the control character {found.group()!r}")


def _check_scalar(value: str | int | float | bool | None) -> None:
    if isinstance(value, str):
        check_text(value, ARGUMENT_MAX)
    elif isinstance(value, float) and not isfinite(value):
        raise ValueError(f"{value} is no number that JSON has; write it as a text")
    elif isinstance(value, int) and abs(value) > INTEGER_MAX:
        raise ValueError("has more than 128 bits; write it as a text")


Text = Annotated[str, _text(ARGUMENT_MAX)]
"""Argument of a process, or prose: tabs, newlines and escapes are allowed."""
Line = Annotated[str, _line(PATH_MAX)]
"""Path, pattern or version, without control characters."""
Label = Annotated[str, _line(LABEL_MAX)]
"""Name of something, without control characters."""
Scalar = Annotated[str | int | float | bool | None, Bound(_check_scalar)]
"""Value of an option or a variable."""
