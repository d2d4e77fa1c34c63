"""The log of the server: one JSON object per line on stderr, for each record of `logging`. The log
of requests, `http/access_log.py`, has lines of the same form.
"""

import errno
import json
import logging
import os
import time
from datetime import datetime, timezone
from pathlib import Path

OUT_OF_FILES = os.strerror(errno.EMFILE)
_OUT_OF_FILES_S = 60.0
_FORMATTER = logging.Formatter()

log = logging.getLogger(__name__)


def line(level: str, event: str, **facts: object) -> str:
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    return json.dumps({"time": now, "level": level, "event": event, **facts})


class OutOfFiles(logging.Filter):
    """Thins out the records which say that this process can open no more files: passes one a
    minute, without its traceback. Every part of the server meets that error, and some parts meet it
    again at once.
    """

    def __init__(self) -> None:
        super().__init__()
        self._silent_until = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if OUT_OF_FILES not in message:
            if not record.exc_info or OUT_OF_FILES not in _FORMATTER.formatException(
                record.exc_info
            ):
                return True
            message += f": {OUT_OF_FILES}"
        if time.monotonic() < self._silent_until:
            return False
        self._silent_until = time.monotonic() + _OUT_OF_FILES_S
        record.msg = f"{message} (written once a minute at most)"
        record.args = ()
        record.exc_info = None
        return True


class JsonLines(logging.Formatter):
    """Formats a record as time, level, event `log`, logger, message, and the
    traceback of an exception.
    """

    def format(self, record: logging.LogRecord) -> str:
        traceback = {"traceback": self.formatException(record.exc_info)} if record.exc_info else {}
        return line(
            record.levelname.lower(),
            "log",
            logger=record.name,
            message=record.getMessage(),
            **traceback,
        )


def log_to_stderr(level: str) -> None:
    """Set up logging for this process."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    handler.addFilter(OutOfFiles())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)  # the server logs its start itself


def rotate(path: Path, max_bytes: int) -> bool:
    """Begin a new log file if stdout and stderr go to the file at `path` and it is larger than
    `max_bytes`.

    The old file becomes `<path>.1` and replaces the previous one. A terminal, a pipe or another
    file stays as it is. Returns True if a new file was begun.
    """
    new = path.with_name(f"{path.name}.new")
    try:
        ours = os.fstat(2)
        there = path.stat()
        if not os.path.samestat(ours, there) or there.st_size <= max_bytes:
            return False
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as file:
            path.replace(path.with_name(f"{path.name}.1"))
            new.replace(path)
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
    except OSError:  # the next call tries again
        return False
    return True
