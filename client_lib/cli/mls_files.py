"""The two files of `mls`, the ML Space platform's command line, as text. Pure: what they say, not where they lie.

~/.mls/config        [default] region, output, endpoint_url
~/.mls/credentials   [default] key_id, key_secret, x_workspace_id, x_api_key
"""

from __future__ import annotations

import configparser
import re
from collections.abc import Mapping

from client_lib.errors import InvalidRequest

OURS = "client-lib"
"""x_api_key of a profile that we have written: this server wants none, and so a later call may write it anew."""
WORKSPACE = "00000000-0000-4000-8000-000000000000"
_HEADER = re.compile(r"\s*\[")


def config(url: str, region: str) -> dict[str, str]:
    return {"region": region, "output": "json", "endpoint_url": f"{url}/public/v2"}


def credentials(user: str, token: str) -> dict[str, str]:
    return {"key_id": user, "key_secret": token, "x_workspace_id": WORKSPACE, "x_api_key": OURS}


def section(text: str, name: str) -> dict[str, str]:
    """What the file says under `[name]`; {} if there is no such section.

    Raises InvalidRequest: `mls` could not read it either.
    """
    parser = configparser.RawConfigParser(default_section="")
    try:
        parser.read_string(text)
    except configparser.Error as error:
        raise InvalidRequest(f"a file of mls can't be read: {error}") from error
    return dict(parser[name]) if parser.has_section(name) else {}


def with_section(text: str, name: str, values: Mapping[str, str]) -> str:
    """`text` with `[name]` saying exactly `values`; whatever else it says stays as it is."""
    lines = text.splitlines()
    start = next((at for at, line in enumerate(lines) if line.strip() == f"[{name}]"), len(lines))
    end = next((at for at in range(start + 1, len(lines)) if _HEADER.match(lines[at])), len(lines))
    new = [f"[{name}]", *(f"{key} = {value}" for key, value in values.items())]
    gap = [""] if end < len(lines) else []
    before = lines[:start] + ([""] if start == len(lines) and lines and lines[-1].strip() else [])
    return "\n".join([*before, *new, *gap, *lines[end:]]) + "\n"
