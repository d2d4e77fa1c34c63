"""The launcher of this worker as a child process of the agent, controlled over its socket (control.py).

It is forked from the agent: a new interpreter would load the same modules once more.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from typing import Callable, List, NoReturn, Optional

from client_lib.worker import control
from client_lib.worker.directory import Directory
from client_lib.worker.pod import AgentEvent, AgentThread

_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "CLIENT_LIB_POD_UID")
_POLL_S = 0.02


class LauncherProcess:
    """`post` gets the launcher's events (control.py), on another thread."""

    def __init__(self, directory: Directory, post: Callable[[AgentEvent], None]) -> None:
        self._directory, self._post = directory, post
        self._instructions: List[bytes] = []
        self._lock = threading.Lock()
        self._connection: Optional[control.ControlConnection] = None
        self._pid = self._order = 0
        self.status: Optional[int] = None
        """The status from os.waitpid; None: it is alive."""
        self.error: Optional[OSError] = None
        """The reason why it could not be forked, which can be reported after the claim."""

    def fork(self) -> None:
        """Fork the process that becomes the launcher. It loads the launcher's modules and waits for `start`; it ends if
        the agent ends before. To be called while this process has one thread."""
        try:
            order, self._order = os.pipe()
            self._pid = os.fork()
        except OSError as error:
            self.error = error
            return
        if self._pid == 0:
            os.close(self._order)
            self._become_launcher(order)
        os.close(order)

    def start(self) -> None:
        with contextlib.suppress(BrokenPipeError):  # it was killed: `reaped` notes it
            os.write(self._order, b"\n")
        os.close(self._order)
        AgentThread("control", self._listen).start()

    def _become_launcher(self, order: int) -> NoReturn:
        """Do what the program of `directory.launcher_command` does, once the order arrives."""
        code = 1
        try:
            for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
                signal.signal(signum, signal.SIG_DFL)
            os.setsid()  # a signal to the agent's group is the agent's to pass on
            os.chdir(self._directory.path)
            with open(os.devnull, "rb") as nothing, open(self._directory.output, "ab") as output:
                for fd, file in enumerate((nothing, output, output)):
                    os.dup2(file.fileno(), fd)
            passed_on = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
            os.environ.clear()
            os.environ.update(passed_on)
            from client_lib.worker.launcher import run_worker  # here: the agent goes on meanwhile

            with os.fdopen(order, "rb") as pipe:
                ordered = pipe.read(1)
            code = run_worker(self._directory.path) if ordered else 0
        except BaseException:  # noqa: BLE001  # the agent's callers must not continue in this process
            import traceback  # here: takes milliseconds

            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.flush()  # Python 3.8 buffers it, and os._exit flushes nothing
            os._exit(code)

    def instruct(self, line: bytes, *, again: bool = True) -> None:
        """Send it now, or as soon as there is a connection. `again` False: now or never."""
        with self._lock:
            self._instructions += [line] if again else []
            self._send([line])

    def _send(self, lines: List[bytes]) -> None:
        if self._connection is not None:
            with contextlib.suppress(OSError):  # it is dying: the agent will reap it
                for line in lines:
                    self._connection.send(line)

    def kill(self) -> None:
        if self._pid and self.status is None:
            os.kill(self._pid, signal.SIGKILL)

    def reaped(self, pid: int, status: int) -> None:
        if pid == self._pid:
            self.status = status

    def _listen(self) -> None:
        while self.status is None:
            try:
                connection = control.ControlConnection(control.connect(self._directory.control))
            except OSError:  # it does not listen yet, or no more
                time.sleep(_POLL_S)
                continue
            with self._lock:
                self._connection = connection
                self._send(self._instructions)
            with contextlib.suppress(OSError):  # the same as end of file
                for message in iter(connection.receive, None):
                    self._post(AgentEvent(launcher=str(message.get("event")), quiet=message.get("ranks")))
            with self._lock:
                self._connection = None
            connection.close()
