"""Texts in TOML."""

from __future__ import annotations

import sys
from typing import Any

from client_lib.errors import InvalidRequest


def parse_toml(text: str, what: object) -> dict[str, Any]:
    """Raises InvalidRequest, which names `what`, for a text that is not valid TOML."""
    if sys.version_info >= (3, 11):  # loaded here: most calls have no file to parse
        import tomllib
    else:
        import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]  # on Python 3.10 only
    try:
        data: dict[str, Any] = tomllib.loads(text)
        return data
    except tomllib.TOMLDecodeError as error:
        raise InvalidRequest(f"{what} is not valid TOML: {error}") from None
