"""The floor of `submits.py`: a bare ASGI app that inserts one row per POST. No validation, no auth,
not durable.

A GET is answered at once.
"""

from __future__ import annotations

import os
import sqlite3
from typing import Any

_database = sqlite3.connect(os.environ["SUBMITS_DB"], isolation_level=None)
_database.execute("PRAGMA journal_mode = WAL")
_database.execute("PRAGMA synchronous = NORMAL")
_database.execute("CREATE TABLE IF NOT EXISTS jobs (id INTEGER PRIMARY KEY, body BLOB)")


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    body = b""
    while True:
        message = await receive()
        body += message["body"]
        if not message.get("more_body"):
            break
    if scope["method"] == "POST":
        _database.execute("INSERT INTO jobs (body) VALUES (?)", (body,))
    headers = [(b"content-type", b"application/json"), (b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 201, "headers": headers})
    await send({"type": "http.response.body", "body": b"{}"})
