"""The server's own log: one JSON object per line on stderr, as the access log writes them."""

from __future__ import annotations

import json
import logging
import os
from datetime import datetime, timezone
from pathlib import Path


class JsonLines(logging.Formatter):
    """time, level, event `log`, logger, message, and the traceback of an exception."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": "log",
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def log_to_stderr(level: str) -> None:
    """Set up logging for this process; the server owns it."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for foreign in ("uvicorn", "alembic.runtime.plugins"):  # what they do at a start is ours to tell
        logging.getLogger(foreign).setLevel(logging.WARNING)


def rotate(path: Path, max_bytes: int) -> bool:
    """If stdout and stderr of this process go to the file at `path` and it is larger: begin a new one, and keep the old
    as `<path>.1` in place of the one before. Nothing happens to a terminal, a pipe or a file that somebody else reads.
    """
    try:
        ours, there = os.fstat(2), path.stat()
        if not os.path.samestat(ours, there) or there.st_size <= max_bytes:
            return False
        path.replace(path.with_name(f"{path.name}.1"))
        new = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError:  # it is tried again
        return False
    os.dup2(new, 1)
    os.dup2(new, 2)
    os.close(new)
    return True
