"""The command line on a terminal of its own (a pseudo-terminal)."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Mapping
from pathlib import Path

WITHIN_S = 30.0


class Terminal:
    """`client-lib ARGS` with a terminal for stdin, stdout and stderr."""

    def __init__(self, *args: str, environment: Mapping[str, str], cwd: Path | None = None) -> None:
        self.shown = b""
        self.exit_code: int | None = None
        self._pid, self._file = pty.fork()
        if self._pid == 0:
            os.chdir(cwd or "/")
            line = [sys.executable, "-m", "client_lib", *args]
            os.execve(sys.executable, line, {**environment, "TERM": "xterm-256color"})

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self.exit_code is None:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        os.close(self._file)

    def write(self, keys: bytes) -> None:
        os.write(self._file, keys)

    def hang_up(self, times: int) -> None:
        """Send what a process gets when its terminal is closed."""
        for _ in range(times):
            os.kill(self._pid, signal.SIGHUP)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._file, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read_until(self, wanted: bytes) -> None:
        deadline = time.monotonic() + WITHIN_S
        while wanted not in self.shown:
            assert time.monotonic() < deadline, f"{wanted!r} was not shown, but {self.shown!r}"
            assert self._read(), f"{wanted!r} was not shown, but {self.shown!r}"

    def read_to_end(self) -> bytes:
        """All that was shown; afterwards the exit code is known."""
        while self._read():
            pass
        _, status = os.waitpid(self._pid, 0)
        self.exit_code = os.waitstatus_to_exitcode(status)
        return self.shown

    def _read(self) -> bool:
        """False at the end."""
        ready, _, _ = select.select([self._file], [], [], WITHIN_S)
        assert ready, f"nothing more was shown than {self.shown!r}"
        try:
            block = os.read(self._file, 65536)
        except OSError:  # Linux: the other side was closed
            return False
        self.shown += block
        return bool(block)
