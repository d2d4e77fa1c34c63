"""The findings of pydantic as sentences: which field is wrong, its value, and what it may be."""

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from client_lib.errors import InvalidRequest

M = TypeVar("M", bound=BaseModel)

_VALUE_SHOWN = 80  # characters of a wrong value in a message
_SENTENCE_SHOWN = 1000
# a request may hold thousands of unknown fields, each of which is compared with all known ones
_FINDINGS_SHOWN = 20
_PRIVATE = frozenset({"secret_values", "env_variables", "environment", "submitter", "notify"})
"""Fields whose values, or values inside them, may be secrets: errors name the
fields and show no value."""

Place = Callable[[Sequence[int | str]], str]
"""Returns the text that a sentence begins with, such as `line 3: `, for the path of an entry."""


def validated(model: type[M], values: Mapping[str, object]) -> M:
    """Make the model of these values. Raises InvalidRequest."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise invalid_request(error, model) from None


def invalid_request(
    error: ValidationError, model: type[BaseModel], place: Place = lambda _: ""
) -> InvalidRequest:
    """All of `error`, a line per field. `model` is what was validated: its fields are
    offered for a misspelt one.
    """
    return refused(error.errors(include_url=False), model, place)


def refused(
    findings: Iterable[Mapping[str, Any]], model: type[BaseModel], place: Place = lambda _: ""
) -> InvalidRequest:
    """Make the InvalidRequest for findings that were collected elsewhere."""
    seen: dict[str, str] = {}
    for finding in findings:
        if len(seen) == _FINDINGS_SHOWN:
            seen[""] = "and more of this kind"
            break
        where = _where(finding["loc"])
        if where not in seen:  # a union reports one finding per member: the first is enough
            seen[where] = place(finding["loc"]) + _cut(_sentence(finding, model), _SENTENCE_SHOWN)
    return InvalidRequest("\n".join(seen.values()))


def _where(loc: Iterable[int | str]) -> str:
    """`spec.n_workers`, without the names of union members that pydantic adds. A key of a
    mapping may hold anything.
    """
    parts = [
        _cut(str(part), _VALUE_SHOWN) for part in loc if not any(c in str(part) for c in "[(' ")
    ]
    return ".".join(part if part.isprintable() else repr(part) for part in parts)


def _sentence(finding: Mapping[str, Any], model: type[BaseModel]) -> str:
    path = _where(finding["loc"])
    if finding["type"] == "extra_forbidden":
        names = _names(_holder(model, finding["loc"]))
        near = difflib.get_close_matches(path.rsplit(".", 1)[-1], names, n=1)
        way_out = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(names)}"
        return f"unknown field {path!r}; {way_out}"
    if finding["type"] == "missing":
        return f"{path} is missing"
    message = str(finding["msg"])
    shown = _shown(finding)
    if finding["type"] != "value_error":
        return f"{path}{shown}: {message[:1].lower()}{message[1:]}"
    # a sentence of ours: it begins with the thing that it names
    message = message.removeprefix("Value error, ")
    if not path:  # of several fields together, which it names
        return message
    return f"{path}: {message}" if shown[1:] in message else f"{path}{shown}: {message}"


def _shown(finding: Mapping[str, Any]) -> str:
    """`=<value>`, cut short; "" where the value may hold a secret: of a mapping the
    entries beside the wrong one.
    """
    value = finding["input"]
    if not _PRIVATE.isdisjoint(map(str, finding["loc"])) or isinstance(value, Mapping):
        return ""
    try:
        return f"={_cut(repr(value), _VALUE_SHOWN)}"
    except (ValueError, RecursionError):  # a number with thousands of digits, deeply nested lists
        return f"=a {type(value).__name__}"


def _cut(text: str, most: int) -> str:
    return f"{text[:most]}…" if len(text) > most else text


def _holder(model: type[BaseModel], loc: Sequence[int | str]) -> type[BaseModel]:
    """The model in which the last part of `loc` stands; an outer one where a
    union leaves open which it is.
    """
    for part in loc[:-1]:
        field = model.model_fields.get(str(part))
        inner = _models(field.annotation) if field else []
        model = inner[0] if len(inner) == 1 else model
    return model


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models(part)]


def _names(model: type[BaseModel]) -> list[str]:
    nested = (field.annotation for field in model.model_fields.values())
    inner = [
        name
        for kind in nested
        if isinstance(kind, type) and issubclass(kind, BaseModel)
        for name in _names(kind)
    ]
    return [*model.model_fields, *inner]
