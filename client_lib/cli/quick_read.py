"""Reads from a server over http.client into plain dicts: for the commands that people type all day.

requests and pydantic cost 200 ms of start-up, more than all else together (benchmarks/command_line.py). So `status`,
`list` and completion ask here first. Whatever is not the plain case (https, another host, an answer that is none)
raises NotQuick, and the SDK does it with its retries and its words: no rule is written twice.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

from client_lib import errors
from client_lib.config import is_loopback

TIMEOUT_S = 10.0


class NotQuick(Exception):
    """Not the plain case; ask through the SDK. Never seen outside of the CLI."""


@dataclass(frozen=True)
class Target:
    """A server that can be read quickly."""

    host: str
    port: int
    token: str | None
    prefix: str = ""

    @classmethod
    def of(cls, endpoint: str, token: str | None) -> Target:
        """Raises NotQuick for all but plain http on loopback: there no proxy is asked and a token is not overheard."""
        try:
            parts = urlsplit(endpoint)
            port = parts.port or 80
        except ValueError as error:
            raise NotQuick from error
        host = parts.hostname or ""
        if parts.scheme != "http" or parts.query or parts.username or not is_loopback(host):
            raise NotQuick
        return cls(host, port, token, parts.path.rstrip("/"))


def read(target: Target, path: str, query: Sequence[tuple[str, str]] = (), timeout_s: float = TIMEOUT_S) -> Any:
    """The JSON that `GET path` answers.

    Raises NotQuick, or the error that the server sent as it would come through the SDK.
    """
    status, body = _get(target, path + ("?" + urlencode(query) if query else ""), timeout_s)
    try:
        answer = json.loads(body)
    except ValueError as error:
        raise NotQuick from error
    if status == http.HTTPStatus.OK:
        return answer
    if isinstance(answer, dict) and status == http.HTTPStatus.NOT_FOUND and answer.get("code") in errors.BY_CODE:
        raise errors.BY_CODE[answer["code"]](str(answer.get("message")), hint=answer.get("hint"))
    raise NotQuick


def _get(target: Target, path: str, timeout_s: float) -> tuple[int, bytes]:
    headers = {"Accept": "application/json"}
    if target.token:
        headers["Authorization"] = f"Bearer {target.token}"
    connection = http.client.HTTPConnection(target.host, target.port, timeout=timeout_s)
    try:
        connection.request("GET", target.prefix + path, headers=headers)
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: a token that is no header
        raise NotQuick from error
    finally:
        connection.close()
