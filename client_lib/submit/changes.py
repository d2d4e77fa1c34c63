"""Changes of a job for another run, and the messages about them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from typing import Any

from pydantic import ValidationError

from client_lib.errors import InvalidRequest
from client_lib.spec.job import JobSpec
from client_lib.spec.validation import invalid_request
from client_lib.spec.wire import CodeInPlace, JobInfo, SubmitRequest

_CODE = ("script", "code", "working_dir")
"""Fields that say what runs."""


def changed(spec: JobSpec, changes: Mapping[str, Any]) -> JobSpec:
    """The spec with other values for some fields; None: the default.

    Raises InvalidRequest: an unknown field, a wrong value, a field that would change the code.
    """
    for name in _CODE:
        if name in changes:
            raise InvalidRequest(
                f"{name} can't be changed: a job that is submitted again runs the same code", hint="submit a new job"
            )
    requirements = changes.get("requirements")
    if isinstance(requirements, str | PathLike):
        changes = {**changes, "requirements": [fspath(requirements)]}
    kept = spec.model_dump(exclude_unset=True)
    given = {name: value for name, value in {**kept, **changes}.items() if value is not None or name == "log_file"}
    try:
        return JobSpec.model_validate(given)
    except ValidationError as error:
        raise invalid_request(error, JobSpec) from error


def differences(before: JobSpec, after: JobSpec) -> list[str]:
    """`n_workers: 2 -> 4` for each field that differs but the name; secrets masked."""
    old, new = before.masked(), after.masked()
    return [
        f"{name}: {_shown(getattr(old, name))} -> {_shown(getattr(new, name))}"
        for name in JobSpec.model_fields
        if name != "name" and getattr(before, name) != getattr(after, name)
    ]


def messages(before: JobInfo, stored: SubmitRequest, after: JobSpec, sha256_now: str | None) -> list[str]:
    """Messages about a new run: the differences, its code, its checkpoints."""
    return [*differences(stored.spec, after), code_message(stored, sha256_now), _checkpoint_message(before, after)]


def _checkpoint_message(before: JobInfo, after: JobSpec) -> str:
    if after.checkpoint_dir is not None:
        return f"checkpoint_dir={after.checkpoint_dir}, as it was left"
    if before.state.final:
        return f"checkpoint_dir: a copy of what {before.name} has left there"
    return f"checkpoint_dir: a new one, as {before.name} is {before.state} and still writes to its own"


def code_message(stored: SubmitRequest, sha256_now: str | None) -> str:
    """The code that the new job runs. `sha256_now`: digest of the script in place as it is now; None: it can't be
    read."""
    if not isinstance(stored.code, CodeInPlace):
        return f"the same code: snapshot {stored.code.sha256[:12]} of {stored.code.root}"
    if stored.code.sha256 is None or sha256_now is None:
        return "the code runs in place: it is today's, not that of the first run"
    if sha256_now == stored.code.sha256:
        return "the code runs in place; the script is as it was, what it imports is today's"
    return "the code runs in place, and the script was changed since: today's runs"


def _shown(value: object) -> str:
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={text}" for key, text in value.items()) or "none"
    if isinstance(value, Sequence):
        return " ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
