"""The spec of a Job made from its arguments."""

from __future__ import annotations

import os
import shlex
from enum import Enum
from functools import cache
from typing import Any

from client_lib.spec.command_line import split_script
from client_lib.spec.job import JobSpec
from client_lib.spec.validation import validated


@cache  # pydantic inspects the signature of each factory at every call
def _defaults() -> dict[str, Any]:
    return {name: field.get_default(call_default_factory=True) for name, field in JobSpec.model_fields.items()}


def checked_spec(values: dict[str, Any]) -> JobSpec:
    """Return the spec of the values that differ from the defaults, so that an older server understands it."""
    given = {
        name: _plain(value)
        for name, value in values.items()
        if (value is not None or name == "log_file") and value != _defaults()[name]
    }
    if isinstance(given.get("requirements"), str):  # a file, or a single requirement
        given["requirements"] = [given["requirements"]]
    if "script" in given:
        given["script"] = _as_words(values["script"])
    return validated(JobSpec, given)


def _plain(value: Any) -> Any:
    """A path as text, a member of an enum as its value."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value.value if isinstance(value, Enum) else value


def _as_words(script: Any) -> Any:
    """Quote a path object, which is one word. A text that can't be split may still name a file; the submit checks
    it."""
    if isinstance(script, os.PathLike):
        return shlex.quote(str(os.fspath(script)))
    if isinstance(script, str) and script.rstrip().endswith(".py"):
        try:
            split_script(script)
        except ValueError:
            return shlex.quote(script.strip())
    return script
