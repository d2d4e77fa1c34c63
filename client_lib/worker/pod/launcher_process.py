"""The launcher of this worker as a child process of the agent, which controls it over a pair of sockets (control.py).

It is forked from the agent: a new interpreter would load the same modules once more.
"""

import contextlib
import os
import signal
import socket
import sys
from typing import Callable, NoReturn, Optional

from client_lib.worker.control import ControlConnection
from client_lib.worker.directory import Directory
from client_lib.worker.pod import AgentEvent, AgentThread

_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "CLIENT_LIB_POD_UID")


class LauncherProcess:
    """`post` gets the launcher's events (control.py), on another thread."""

    def __init__(self, directory: Directory, post: Callable[[AgentEvent], None]) -> None:
        self._directory, self._post = directory, post
        ours, self._launchers = socket.socketpair()
        self._connection = ControlConnection(ours)
        self._pid = 0
        self.status: Optional[int] = None
        """The status from os.waitpid; None: it is alive."""
        self.error: Optional[OSError] = None
        """The reason why it could not be forked, which can be reported after the claim."""

    def fork(self) -> None:
        """Fork the process that becomes the launcher. It loads the launcher's modules and waits for `start`; it ends if
        the agent ends before. To be called while this process has one thread."""
        try:
            self._pid = os.fork()
        except OSError as error:
            self.error = error
            return
        if self._pid == 0:
            self._connection.close()
            self._become_launcher()
        self._launchers.close()

    def start(self) -> None:
        self.instruct(b"\n")
        AgentThread("control", self._listen).start()

    def _become_launcher(self) -> NoReturn:
        """Do what the program of `directory.launcher_command` does, once the first byte arrives."""
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

            code = run_worker(self._directory.path, agent=self._launchers) if self._launchers.recv(1) else 0
        except BaseException:  # noqa: BLE001  # the agent's callers must not continue in this process
            import traceback  # here: takes milliseconds

            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.flush()  # Python 3.8 buffers it, and os._exit flushes nothing
            os._exit(code)

    def instruct(self, line: bytes) -> None:
        with contextlib.suppress(OSError):  # it is dead or dying: the agent will reap it
            self._connection.send(line)

    def kill(self) -> None:
        if self._pid and self.status is None:
            os.kill(self._pid, signal.SIGKILL)

    def reaped(self, pid: int, status: int) -> None:
        if pid == self._pid:
            self.status = status

    def _listen(self) -> None:
        with contextlib.suppress(OSError):  # the same as end of file
            for message in iter(self._connection.receive, None):
                self._post(AgentEvent(launcher=str(message.get("event")), quiet=message.get("ranks")))
