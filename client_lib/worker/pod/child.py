"""The launcher of this worker, as a child of the agent: started, spoken to over its control socket, seen to end.

Standard library only, Python >= 3.8.
"""

import os
import signal
import subprocess
import threading
import time
from typing import Callable, List, Optional

from client_lib.worker import control
from client_lib.worker.directory import Directory, launcher_command

OUTPUT = "launcher.out"  # what a launcher says when it can't even begin
_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "CLIENT_LIB_POD_UID")
_LOOK_S = 0.02


class Child:
    """`on_event` gets what the launcher says (see control.py), on another thread."""

    def __init__(self, directory: Directory, on_event: Callable[[str], None]) -> None:
        self._directory, self._on_event = directory, on_event
        self._orders: List[bytes] = []
        self._lock = threading.Lock()
        self._connection: Optional[control.Connection] = None
        self._pid = 0
        self.status: Optional[int] = None
        """As os.waitpid tells it; None: it lives."""

    def start(self) -> None:
        """Raises OSError."""
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        with open(os.path.join(self._directory.path, OUTPUT), "ab") as output:
            self._pid = subprocess.Popen(
                launcher_command(self._directory.path),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self._directory.path,
                env=environment,
                start_new_session=True,  # a signal to the agent's group is the agent's to pass on
            ).pid
        threading.Thread(target=self._listen, name="control", daemon=True).start()

    def order(self, line: bytes) -> None:
        """Say it now, or as soon as there is a connection."""
        with self._lock:
            self._orders.append(line)
            if self._connection is not None:
                self._send(self._connection, line)

    def kill(self) -> None:
        """Its ranks die with it."""
        if self._pid and self.status is None:
            os.kill(self._pid, signal.SIGKILL)

    def reaped(self, pid: int, status: int) -> None:
        """A child of this process has ended."""
        if pid == self._pid:
            self.status = status

    @property
    def ended(self) -> bool:
        return self.status is not None

    def last_words(self) -> str:
        """The last line of what it said outside of the log; it may be empty."""
        try:
            with open(os.path.join(self._directory.path, OUTPUT), encoding="utf-8", errors="replace") as file:
                said = file.read().strip().splitlines()
        except OSError:
            return ""
        return said[-1] if said else ""

    def _listen(self) -> None:
        while not self.ended:
            try:
                connection = control.Connection(self._directory.control)
            except OSError:  # it doesn't listen yet, or no more
                time.sleep(_LOOK_S)
                continue
            with self._lock:
                self._connection = connection
                for line in self._orders:
                    self._send(connection, line)
            self._read(connection)

    def _read(self, connection: control.Connection) -> None:
        try:
            while True:
                message = connection.receive()
                if message is None:
                    break
                self._on_event(str(message.get("event")))
        except OSError:  # as good as its end
            pass
        with self._lock:
            self._connection = None
        connection.close()

    def _send(self, connection: control.Connection, line: bytes) -> None:
        try:
            connection.send(line)
        except OSError:  # it is dying: that is seen elsewhere
            pass
