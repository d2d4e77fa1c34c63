"""Writes an exception to TORCHELASTIC_ERROR_FILE, in the format of torch."""

from __future__ import annotations

import os
import time

from client_lib.worker.rank_runner.this_rank import THIS_RANK


def write_error_file(error: BaseException, raised_at: float | None = None) -> str | None:
    """Write the file as ErrorHandler of torch.distributed.elastic writes it. A file that is there
    already stays: ErrorHandler has written it, with more details. `raised_at`: seconds since 1970;
    None: now. Returns the path of the file; None: nothing was written."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path or os.getpid() != THIS_RANK.pid:
        return None
    now = time.time() if raised_at is None else raised_at
    try:
        import json
        import traceback

        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        extra = {
            "py_callstack": text,
            "timestamp": str(int(now)),
            "rank": os.environ.get("RANK", ""),
            "raised_at": now,
        }
        message = {"message": "%s: %s" % (type(error).__name__, error), "extraInfo": extra}
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with open(os.open(path, flags, 0o600), "w") as file:
            json.dump({"message": message}, file)
    # the file exists, the disk is full, or str(error) fails; stderr has the traceback anyway
    except Exception:  # noqa: BLE001
        return None
    return path
