"""Copies of models with other values of some fields, whose names are checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:  # the fast reads of the command line load no pydantic
    from pydantic import BaseModel

M = TypeVar("M", bound="BaseModel")


def replaced(model: M, /, **fields: Any) -> M:
    """Copy the model with other values of these fields, which are not validated.

    mypy checks names and types: `tests/typing/plugin.py` tells it the fields of each model. Raises
    TypeError: the model has no field of this name.
    """
    unknown = fields.keys() - type(model).model_fields.keys()
    if unknown:
        raise TypeError(f"{type(model).__name__} has no field {', '.join(sorted(unknown))}")
    return model.model_copy(update=fields)
