"""Changes of the configuration file as text, so that a user's comments stay. `transport.config` reads the file.

Each change is read back before it is written: a file in a layout that this module does not understand is left alone.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

from client_lib.errors import ClientLibError, InvalidRequest
from client_lib.transport.config import read_profiles

Value = str | bool | float

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_HEADER = re.compile(r"\s*\[")


def with_profile(text: str, name: str, values: dict[str, Value | None]) -> str:
    """`text` with these keys of the profile set; None removes a key. A profile that isn't there is appended."""
    lines = text.splitlines()
    start = _section(lines, name)
    if start is None:
        lines += [*([""] if lines else []), f"[profiles.{_key(name)}]"]
        start = len(lines)
    for key, value in values.items():
        _set(lines, start, key, value)
    return "\n".join(lines) + "\n"


def with_default(text: str, name: str) -> str:
    """`text` with `profile = name` at its top level."""
    lines = text.splitlines()
    _set(lines, 0, "profile", name)
    return "\n".join(lines) + "\n"


def _section(lines: list[str], name: str) -> int | None:
    """Index of the line after the profile's header."""
    header = re.compile(
        rf"\s*\[\s*profiles\s*\.\s*(?:{re.escape(name)}|{re.escape(json.dumps(name))}|'{re.escape(name)}')\s*\]"
    )
    return next((at + 1 for at, line in enumerate(lines) if header.match(line)), None)


def _set(lines: list[str], start: int, key: str, value: Value | None) -> None:
    """Replace, insert or remove `key` in the section whose first line is `start`."""
    end = next((at for at in range(start, len(lines)) if _HEADER.match(lines[at])), len(lines))
    there = re.compile(rf"\s*{re.escape(key)}\s*=")
    found = next((at for at in range(start, end) if there.match(lines[at])), None)
    new = [] if value is None else [f"{key} = {json.dumps(value, ensure_ascii=False)}"]
    if found is None:
        lines[start:start] = new
    else:
        lines[found : found + 1] = new


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def write(path: Path, text: str, expected: tuple[str | None, dict[str, dict[str, Any]]]) -> None:
    """Replace the file by `text` (0600: it may hold tokens) if it means `expected`, whole or not at all.

    Raises InvalidRequest if it would mean something else, or can't be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise InvalidRequest(f"{path} can't be written: {error.strerror}") from error
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        _check(Path(temporary), path, expected)
        os.replace(temporary, os.path.realpath(path))  # a link to a file kept elsewhere stays a link
    except BaseException:
        os.unlink(temporary)
        raise


def _check(written: Path, path: Path, expected: tuple[str | None, dict[str, dict[str, Any]]]) -> None:
    try:
        meant = read_profiles(written)
    except ClientLibError as error:
        raise InvalidRequest(error.message.replace(str(written), str(path)), hint=error.hint) from error
    if meant != expected:
        raise InvalidRequest(f"{path} is laid out in a way that can't be changed from here", hint="edit it by hand")
