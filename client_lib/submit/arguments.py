"""The spec of a Job made from its arguments, and the name of a job whose user gave none."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import string
import uuid
from enum import Enum
from functools import cache
from typing import Any

from pydantic import ValidationError

from client_lib.spec.command_line import split_script
from client_lib.spec.job import NAME_MAX, JobSpec
from client_lib.spec.validation import invalid_request


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
    try:
        return JobSpec.model_validate(given)
    except ValidationError as error:
        raise invalid_request(error, JobSpec) from None


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


# --- the name

SUFFIX = 5  # 36^5: names of one user and script collide once in some thousand jobs, and then the server refuses one
_ALPHABET = string.ascii_lowercase + string.digits
_INTERPRETERS = re.compile(r"(ba|z|da|k)?sh|python[\d.]*|torchrun|accelerate|env|exec|nohup")


def draw_name(spec: JobSpec) -> str:
    if spec.region:
        return f"lm-mpi-job-{uuid.uuid4()}"
    return name_for(spec.script, "".join(secrets.choice(_ALPHABET) for _ in range(SUFFIX)))


def name_for(script: str, suffix: str) -> str:
    """`<script's stem>-<suffix>`, a DNS label: `my Model_v2.py --lr 1` and `x7k2m` give `my-model-v2-x7k2m`."""
    stem = os.path.splitext(os.path.basename(_program(split_script(script))))[0]
    label = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")
    if not label[:1].isalpha():
        label = f"job-{label}".rstrip("-")
    return f"{label[: NAME_MAX - 1 - len(suffix)].rstrip('-')}-{suffix}"


def _program(words: list[str]) -> str:
    """The first word that is neither an interpreter nor an option of one."""
    named = (w for w in words if not w.startswith("-") and not _INTERPRETERS.fullmatch(os.path.basename(w)))
    found = next(named, words[0])
    return found if re.fullmatch(r"[\w./ -]+", found) else words[0]  # `bash -c '...'` is named bash
