"""Bounds of the values in a request as types, and bases of the models.

Processes, file names and databases can hold each value within the bounds. An earlier version had
none, so stored requests are read without them: `model_validate_json(text, context=STORED)`.
"""

# without `from __future__ import annotations`: pydantic would compile each annotation from its
# text, 3 % of a submit

import ast
import copy
import inspect
import json
import re
import textwrap
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from itertools import pairwise
from math import isfinite
from typing import Annotated, Any, TypeVar, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import CoreSchema, core_schema

from client_lib.spec.states import Reason, State, as_sent

T = TypeVar("T")
A = TypeVar("A", bound="Lenient")

STORED = {"stored": True}
"""Context for the validation of stored requests and of answers: the bounds of this
version do not apply to them.
"""

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

    def __init__(
        self, check: Callable[[Any], None], *, first: bool = False, **schema: object
    ) -> None:
        """`first`: check before the entries of a list or mapping are checked. `schema`:
        the bound as JSON Schema.
        """
        self.check = check
        self._first = first
        self._schema = schema

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        before = core_schema.with_info_before_validator_function
        after = core_schema.with_info_after_validator_function
        inner = handler(source)
        if inner["type"] == "list":  # an error of each of very many entries would take minutes
            cast(core_schema.ListSchema, inner)["fail_fast"] = True
        return (before if self._first else after)(self._checked, inner)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return handler(schema) | self._schema

    def _checked(self, value: T, info: ValidationInfo) -> T:
        if info.context is not STORED:
            self.check(value)
        return value


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


def _text(most: int, *, is_line: bool = False) -> Bound:
    def check(value: str) -> None:
        if not is_storable(value):  # it is not shown: it may be a secret
            raise ValueError(
                "holds a NUL byte or half of a character; no process, file name or database can "
                "hold one"
            )
        if len(value) > most:
            raise ValueError(f"has {len(value)} characters; at most {most} are allowed")
        if is_line and (found := _CONTROL.search(value)):  # like a newline
            raise ValueError(f"holds the control character {found.group()!r}")

    return Bound(
        check, maxLength=most, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$" if is_line else r"^[^\x00]*$"
    )


def is_storable(text: str) -> bool:
    """False for a text with a NUL byte or a lone surrogate, which UTF-8 can't encode."""
    return "\0" not in text and (text.isascii() or _SURROGATE.search(text) is None)


_ARGUMENT = _text(ARGUMENT_MAX)


def _check_scalar(value: str | int | float | bool | None) -> None:
    if isinstance(value, str):
        _ARGUMENT.check(value)
    elif isinstance(value, float) and not isfinite(value):
        raise ValueError(f"{value} is no number that JSON has; write it as a text")
    elif isinstance(value, int) and abs(value) > INTEGER_MAX:
        raise ValueError("has more than 128 bits; write it as a text")


Text = Annotated[str, _ARGUMENT]
"""Argument of a process, or prose: tabs, newlines and escapes are allowed."""
Line = Annotated[str, _text(PATH_MAX, is_line=True)]
"""Path, pattern or version, without control characters."""
Label = Annotated[str, _text(LABEL_MAX, is_line=True)]
"""Name of something, without control characters."""
Scalar = Annotated[str | int | float | bool | None, Bound(_check_scalar)]
"""Value of an option or a variable."""


# --- models

_Place = tuple[int | str, ...]
"""The place of a field in a text, as pydantic tells it: names, indexes, and tags of unions."""


def unknown_fields(error: ValidationError) -> list[_Place]:
    """The places of the unknown fields, if nothing else is wrong."""
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    if any(problem["type"] != "extra_forbidden" for problem in problems):
        return []
    return [problem["loc"] for problem in problems]


def _without(data: Any, fields: list[_Place]) -> Any:
    """Remove these fields from the objects of a JSON text."""
    for *above, name in fields:
        place: Any = data
        for step in above:
            if isinstance(place, dict) and step not in place:
                continue  # the tag of a union, which is no field
            place = place[step]
        del place[name]
    return data


class Described(BaseModel):
    """Base of models whose JSON Schema has these descriptions."""

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        found = handler(schema)
        properties = handler.resolve_ref_schema(found)["properties"]
        for name, text in descriptions(cls).items():
            properties[name]["description"] = text
        return found


UNKNOWN_MAX = 20
"""Largest number of unknown fields of an object that an error names. If there are more, the error
has only their number, because pydantic takes minutes to make an error for each."""


class Strict(Described):
    """Base of requests: frozen, and an unknown field is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _few_unknown_fields(cls, given: Any) -> Any:
        if isinstance(given, dict) and len(given) > len(cls.model_fields) + UNKNOWN_MAX:
            raise ValueError(f"has {len(given)} fields; at most {len(cls.model_fields)} are known")
        return given


def empty(kind: type[list[Any]] | type[dict[Any, Any]]) -> Any:
    """A field that is [] or {} by default, made for each object: pydantic would copy a
    default deeply, in Python.
    """
    return Field(default_factory=kind, json_schema_extra={"default": kind()})


class Lenient(Described):
    """Base of answers: frozen, an unknown field is ignored, also in a part that is a model of
    requests, and the bounds of requests do not hold.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    @classmethod
    def model_validate(cls: type[A], obj: Any, **options: Any) -> A:
        options = {"context": STORED, **options}
        try:
            return super().model_validate(obj, **options)
        except ValidationError as error:
            if not (unknown := unknown_fields(error)):
                raise
            return super().model_validate(_without(copy.deepcopy(obj), unknown), **options)

    @classmethod
    def model_validate_json(cls: type[A], json_data: str | bytes | bytearray, **options: Any) -> A:
        options = {"context": STORED, **options}
        try:
            return super().model_validate_json(json_data, **options)
        except ValidationError as error:
            if not (unknown := unknown_fields(error)):
                raise
            known = json.dumps(_without(json.loads(json_data), unknown))
            return super().model_validate_json(known, **options)


class Seldom(Lenient):
    """Base of answers that a submit does not read: pydantic builds them at their first use, not at
    the import. The body of a request must not have this base: FastAPI would warn at each start of
    the server."""

    model_config = ConfigDict(defer_build=True)


class WithNan(Lenient):
    """Base of answers with measured values: in JSON, NaN and the infinities are the
    strings "NaN" and "Infinity".
    """

    model_config = ConfigDict(ser_json_inf_nan="strings")


def _lenient(kind: type[State] | type[Reason], value: object) -> Any:
    return as_sent(kind, value) if isinstance(value, str) else value


SentState = Annotated[State, BeforeValidator(partial(_lenient, State))]
SentReason = Annotated[Reason, BeforeValidator(partial(_lenient, Reason))]


@cache
def descriptions(model: type[BaseModel]) -> dict[str, str]:
    """The text below each field of `model`, also of inherited fields; nothing where the source
    isn't there. Only documents and help texts need it: pydantic's `use_attribute_docstrings`, which
    reads it at each import, takes a quarter of the time of an import of the spec."""
    found: dict[str, str] = {}
    for kind in reversed(model.__mro__):
        if not vars(kind).get("__pydantic_fields__"):
            continue
        for field, text in pairwise(_body_in_source(kind)):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                assert isinstance(field.target, ast.Name)
                found[field.target.id] = inspect.cleandoc(ast.literal_eval(text.value))
    return found


def _body_in_source(kind: type) -> list[ast.stmt]:
    """The statements of a class in its source; empty where the source isn't there."""
    with suppress(OSError, SyntaxError):
        first = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
        # Python 3.13 shows other lines for a class that was made by exec
        if isinstance(first, ast.ClassDef) and first.name == kind.__name__:
            return first.body
    return []
