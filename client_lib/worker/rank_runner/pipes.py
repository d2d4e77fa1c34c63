"""Gives a rank under torchrun pipes of its own, so that the log tells the ranks apart."""

from __future__ import annotations

import os
import time

_ANSWER_S = 10.0
"""Longest wait for the launcher to open the pipes."""
_LOOK_S = 0.002
"""Pause between two looks."""


def bring_own_output() -> None:
    """Replace stdout and stderr by pipes of this rank if the launcher requests and opens them."""
    folder = os.environ.pop("CLIENT_LIB_RANK_PIPES", "")
    if not folder:
        return
    name = "%s-%d" % (os.environ["RANK"], os.getpid())
    paths = [os.path.join(folder, "%s.%s" % (name, stream)) for stream in ("stdout", "stderr")]
    fds: list[int] = []
    writers: list[int] = []
    try:
        for path in paths:
            os.mkfifo(path, 0o600)
            # for reading, too: otherwise the next `open` waits for a reader
            fds.append(os.open(path, os.O_RDWR))
            writers.append(os.open(path, os.O_WRONLY))
        new = os.open(os.path.join(folder, "new"), os.O_WRONLY | os.O_NONBLOCK)
        os.write(new, b"%b %b\n" % (os.environ["RANK"].encode(), name.encode()))
        os.close(new)
        end = time.monotonic() + _ANSWER_S
        while any(map(os.path.exists, paths)) and time.monotonic() < end:
            time.sleep(_LOOK_S)
        if not any(map(os.path.exists, paths)):
            os.dup2(writers[0], 1)
            os.dup2(writers[1], 2)
    except OSError:  # the launcher is gone, or the disk is full
        pass
    for fd in fds + writers:
        os.close(fd)
