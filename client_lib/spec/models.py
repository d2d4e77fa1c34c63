"""Bases of the models: strict ones of requests, lenient ones of answers; and the descriptions of their fields.

A description is the text below a field in the source of its model, as `JobSpec` has them. pydantic's own
`use_attribute_docstrings` reads these texts at each import, a quarter of the time of an import of the spec. Only
documents and help texts need descriptions, and read them from the source.
"""

# without `from __future__ import annotations`: pydantic would compile each annotation from its text, 3 % of a submit

import ast
import inspect
import textwrap
from functools import cache, partial
from itertools import pairwise
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetJsonSchemaHandler
from pydantic_core import CoreSchema

from client_lib.spec.states import Reason, State, as_sent
from client_lib.spec.validation import STORED

A = TypeVar("A", bound="Lenient")


class Described(BaseModel):
    """Base of models whose JSON Schema has these descriptions."""

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        found = handler(schema)
        properties = handler.resolve_ref_schema(found)["properties"]
        for name, text in descriptions(cls).items():
            properties[name]["description"] = text
        return found


class Strict(Described):
    """Base of requests: frozen, and an unknown field is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def empty(kind: type[list[Any]] | type[dict[Any, Any]]) -> Any:
    """A field that is [] or {} by default: created for each object, because pydantic would copy a default deeply, in
    Python."""
    return Field(default_factory=kind, json_schema_extra={"default": kind()})


class Lenient(Described):
    """Base of answers: frozen, an unknown field is ignored, and the bounds of requests do not hold."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    @classmethod
    def model_validate(cls: type[A], obj: Any, **options: Any) -> A:
        return super().model_validate(obj, **{"context": STORED, **options})

    @classmethod
    def model_validate_json(cls: type[A], json_data: str | bytes | bytearray, **options: Any) -> A:
        return super().model_validate_json(json_data, **{"context": STORED, **options})


class Seldom(Lenient):
    """Base of answers that a submit does not read: pydantic builds them at their first use, not at the import.
    The body of a request must not have this base: FastAPI would warn at each start of the server."""

    model_config = ConfigDict(defer_build=True)


class WithNan(Lenient):
    """Base of answers with measured values: in JSON, NaN and the infinities are the strings "NaN" and "Infinity"."""

    model_config = ConfigDict(ser_json_inf_nan="strings")


def _lenient(kind: type[State] | type[Reason], value: Any) -> Any:
    return as_sent(kind, value) if isinstance(value, str) else value


SentState = Annotated[State, BeforeValidator(partial(_lenient, State))]
SentReason = Annotated[Reason, BeforeValidator(partial(_lenient, Reason))]


@cache
def descriptions(model: type[BaseModel]) -> dict[str, str]:
    """The text below each field of `model`, also of those that it inherits; nothing where the source isn't there."""
    found: dict[str, str] = {}
    for kind in reversed(model.__mro__):
        if vars(kind).get("__pydantic_fields__"):
            found |= _texts(kind)
    return found


def _texts(kind: type) -> dict[str, str]:
    try:
        source = inspect.getsource(kind)
    except OSError:
        return {}
    [definition] = ast.parse(textwrap.dedent(source)).body
    assert isinstance(definition, ast.ClassDef)
    return {
        field.target.id: inspect.cleandoc(text.value.value)
        for field, text in pairwise(definition.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }
