"""Output of ranks that an elastic agent starts: each brings pipes of its own, so that its lines carry its rank.

An agent numbers its ranks by itself, and anew whenever the group changes; through the agent's own output nobody could
tell them apart. A rank (`rank_runner`) makes two named pipes in this folder, writes `RANK NAME` into the pipe `new` and
goes on as soon as they were opened here and removed. Standard library only, Python >= 3.8.
"""

import os
from typing import Callable

from client_lib.worker.loop import Loop

NEW = "new"  # rank_runner.py knows these names, too
VARIABLE = "CLIENT_LIB_RANK_PIPES"
STREAMS = ("stdout", "stderr")

_BLOCK = 4096


class RankPipes:
    """The launcher's side."""

    def __init__(self, path: str, loop: Loop, add_pipe: Callable[[int, str, int], None]) -> None:
        """`add_pipe`: is given the rank, the stream and the descriptor to read."""
        self._path, self._loop, self._add_pipe = path, loop, add_pipe
        self._rest = b""
        os.makedirs(path, mode=0o700, exist_ok=True)
        for name in os.listdir(path):  # of a launcher that was here before
            os.unlink(os.path.join(path, name))
        new = os.path.join(path, NEW)
        os.mkfifo(new, 0o600)
        self._fd = os.open(new, os.O_RDWR | os.O_NONBLOCK)  # for writing, too: so it never comes to its end
        loop.watch(self._fd, self._read)

    def close(self) -> None:
        self._loop.forget(self._fd)
        os.close(self._fd)

    def _read(self) -> None:
        *lines, self._rest = (self._rest + os.read(self._fd, _BLOCK)).split(b"\n")
        for line in lines:
            rank, _, name = line.decode("ascii", "replace").partition(" ")
            if rank.isdigit():
                self._take(int(rank), os.path.join(self._path, os.path.basename(name)))

    def _take(self, rank: int, path: str) -> None:
        try:
            fds = [os.open("%s.%s" % (path, stream), os.O_RDONLY | os.O_NONBLOCK) for stream in STREAMS]
        except OSError:  # the rank is gone already
            return
        for stream, fd in zip(STREAMS, fds):  # noqa: B905  Python 3.8 has no strict
            self._add_pipe(rank, stream, fd)
            os.unlink("%s.%s" % (path, stream))
