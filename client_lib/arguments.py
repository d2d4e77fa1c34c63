"""From the arguments of a Job to its spec: checked, with only what was given. Pure; only `job` uses it."""

from __future__ import annotations

import os
import shlex
from enum import Enum
from functools import cache
from typing import Any

from pydantic import ValidationError

from client_lib.spec.command_line import split_script
from client_lib.spec.job import JobSpec
from client_lib.spec.validation import invalid_request


@cache  # pydantic looks at the signature of each factory again
def _defaults() -> dict[str, Any]:
    return {name: field.get_default(call_default_factory=True) for name, field in JobSpec.model_fields.items()}


def checked_spec(values: dict[str, Any]) -> JobSpec:
    """What differs from the defaults: clients send only fields that were set, so that older servers understand them."""
    given = {
        name: _plain(value)
        for name, value in values.items()
        if (value is not None or name == "log_file") and value != _defaults()[name]
    }
    if isinstance(given.get("requirements"), str):  # a file, or the only one
        given["requirements"] = [given["requirements"]]
    if "script" in given:
        given["script"] = _words_of(values["script"])
    try:
        return JobSpec.model_validate(given)
    except ValidationError as error:
        raise invalid_request(error, JobSpec) from error


def _plain(value: Any) -> Any:
    """A path as text, a member of whichever enum as its value."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value.value if isinstance(value, Enum) else value


def _words_of(script: Any) -> Any:
    """A path object is one word. A text that no shell rule can split may still be the name of a file: submit looks."""
    if isinstance(script, os.PathLike):
        return shlex.quote(str(os.fspath(script)))
    if isinstance(script, str) and script.rstrip().endswith(".py"):
        try:
            split_script(script)
        except ValueError:
            return shlex.quote(script.strip())
    return script
