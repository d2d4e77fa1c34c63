"""Descriptions of fields: the text below a field in the source of its model, as `JobSpec` has them.

pydantic's own `use_attribute_docstrings` reads these texts at each import, a quarter of the time of an import of the
spec. Documents and help texts are all that needs them, so they are read from the source then.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler
    from pydantic_core import CoreSchema


class Described(BaseModel):
    """Base of models whose JSON Schema has these descriptions."""

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        found = handler(schema)
        properties = handler.resolve_ref_schema(found)["properties"]
        for name, text in descriptions(cls).items():
            properties[name]["description"] = text
        return found


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
