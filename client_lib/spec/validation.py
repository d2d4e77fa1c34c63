"""From pydantic's findings to one sentence per field: the name, the value, what is allowed.

Used by the client and the server.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from client_lib.errors import InvalidRequest

_VALUE_SHOWN = 80  # characters of a wrong value in a message


def invalid_request(error: ValidationError, model: type[BaseModel]) -> InvalidRequest:
    """All of `error`, a line per field. `model` is what was validated: its fields are offered for a misspelt one."""
    seen: dict[str, str] = {}
    for finding in error.errors(include_url=False):
        seen.setdefault(
            _where(finding["loc"]), _sentence(finding, model)
        )  # a union reports each member: the first says it
    return InvalidRequest("\n".join(seen.values()))


def _where(loc: Iterable[int | str]) -> str:
    """`spec.n_workers`, without the names of union members that pydantic adds."""
    return ".".join(str(part) for part in loc if not any(c in str(part) for c in "[(' "))


def _sentence(finding: Mapping[str, Any], model: type[BaseModel]) -> str:
    path = _where(finding["loc"])
    field = path.rsplit(".", 1)[-1]
    if finding["type"] == "extra_forbidden":
        return f"unknown field {path!r}{_nearest(field, _names(model))}"
    if finding["type"] == "missing":
        return f"{path} is missing"
    message, value = str(finding["msg"]), finding["input"]
    shown = repr(value)
    if len(shown) > _VALUE_SHOWN:
        shown = shown[:_VALUE_SHOWN] + "…"
    if finding["type"] != "value_error":
        return f"{path}={shown}: {message[:1].lower()}{message[1:]}"
    message = message.removeprefix("Value error, ")  # a sentence of ours: it begins with the thing that it names
    # a mapping is not shown: beside the entry that is wrong it may hold a token
    return f"{path}: {message}" if shown in message or isinstance(value, Mapping) else f"{path}={shown}: {message}"


def _names(model: type[BaseModel]) -> list[str]:
    """Fields of the model and of the models it holds."""
    nested = (field.annotation for field in model.model_fields.values())
    inner = [name for kind in nested if isinstance(kind, type) and issubclass(kind, BaseModel) for name in _names(kind)]
    return [*model.model_fields, *inner]


def _nearest(wrong: str, names: list[str]) -> str:
    near = difflib.get_close_matches(wrong, names, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; there are: {', '.join(names)}"
