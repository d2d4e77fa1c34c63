"""The server's own log: one JSON object per line on stderr, as the access log writes them."""

from __future__ import annotations

import json
import logging
from datetime import datetime, timezone


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
