"""The pool's process (started by `__main__`): imports packages, then forks a launcher per request.

Its arguments are DESCRIPTOR, CONFIG and ROOM. DESCRIPTOR is its end of a pair of sockets (SOCK_SEQPACKET, one JSON
object per packet), inherited from the runtime: no other process can reach it, and the pool ends at its end of file.
CONFIG is a JSON file:

    python    the interpreter, as the jobs name it
    modules   modules to import, in this order
    refused   {module: reason why it is left out}; the pool adds to it
    idle_s    seconds without a request after which the pool ends

    runtime -> pool   {"do": "launch", "worker_dir": PATH}
    pool -> runtime   {"event": "ready", "modules": COUNT}
                      {"event": "launched", "worker_dir": PATH}   a launcher runs there, and holds its lock
                      {"event": "gone", "worker_dir": PATH}       the launcher has ended
                      {"event": "ending", "why": TEXT}            no further request is served

Its environment holds MARKER with ROOM as value.
"""

import gc
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from typing import Any, Dict, List, NoReturn, Optional

from client_lib.worker.directory import Directory, read_json, write_json
from client_lib.worker.launcher import run_worker
from client_lib.worker.system import ended_children, memory_is_short, restore_open_files
from client_lib.worker.warm.hidden import Hidden
from client_lib.worker.warm.preload import Unfit, end_children, fingerprint, folders, preload
from client_lib.worker.warm.rank import Warm, given_environment

_POLL_S = 2.0
_REFUSED_MAX = 5  # with more, the modules after the first refused one are not imported


class PoolProcess:
    """One per process. `run` never returns."""

    def __init__(self, runtime: socket.socket, config_path: str, hidden: Hidden) -> None:
        self._runtime, self._config_path, self._hidden = runtime, config_path, hidden
        self._environment = given_environment()
        self._config: Dict[str, Any] = read_json(config_path) or {}
        self._launchers: Dict[int, str] = {}  # pid -> worker_dir
        self._packages = fingerprint(folders())
        self._warm: Optional[Warm] = None
        self._used_at = time.monotonic()

    def run(self) -> NoReturn:
        gc.disable()
        try:
            preload(self._modules(), self._hidden)
        except Unfit as unfit:
            self._restart(unfit)
        self._hidden.end_learning()
        self._warm = Warm(str(self._config["python"]), self._environment, self._hidden, self._packages)
        gc.collect()
        gc.freeze()
        self._send({"event": "ready", "modules": self._hidden.count_packaged()})
        self._serve()

    def _modules(self) -> List[str]:
        names, refused = self._config["modules"], self._config["refused"]
        if len(refused) > _REFUSED_MAX:
            return list(names[: min(names.index(name) for name in refused if name in names)])
        return [name for name in names if name not in refused]

    def _restart(self, unfit: Unfit) -> NoReturn:
        """Start again without the module: its effects on this process cannot be undone."""
        self._config["refused"][unfit.module] = unfit.why
        write_json(self._config_path, self._config)
        end_children()
        os.execve(self._config["python"], [self._config["python"]] + sys.argv, self._environment)

    def _serve(self) -> NoReturn:
        wakeup, wakeup_write = os.pipe()
        for fd in (wakeup, wakeup_write):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
        while True:
            ready, _, _ = select.select([self._runtime.fileno(), wakeup], [], [], _POLL_S)
            if wakeup in ready:
                os.read(wakeup, 4096)
            self._reap()
            if self._runtime.fileno() in ready:
                self._serve_request()
            self._end_if_unneeded()

    def _serve_request(self) -> None:
        try:
            packet = self._runtime.recv(65536)
        except ConnectionError:
            packet = b""
        if not packet:
            os._exit(0)
        request = json.loads(packet)
        if fingerprint(folders()) != self._packages:
            self._end("the installed packages have changed")
        self._used_at = time.monotonic()
        self._launch(request["worker_dir"])

    def _launch(self, worker_dir: str) -> None:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = self._be_launcher(worker_dir)
            except BaseException:  # noqa: BLE001  (the callers must not continue in this process)
                traceback.print_exc()
            finally:
                os._exit(code)
        self._launchers[pid] = worker_dir

    def _be_launcher(self, worker_dir: str) -> int:
        """The same as `python -m client_lib.worker worker_dir`."""
        signal.set_wakeup_fd(-1)
        os.setsid()
        os.chdir(worker_dir)
        output = os.open(Directory(worker_dir).output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)

        def tell() -> None:
            self._send({"event": "launched", "worker_dir": worker_dir})
            self._runtime.close()

        return run_worker(worker_dir, self._warm, tell)

    def _reap(self) -> None:
        for pid, _ in ended_children():
            if pid in self._launchers:
                self._send({"event": "gone", "worker_dir": self._launchers.pop(pid)})

    def _end_if_unneeded(self) -> None:
        if time.monotonic() - self._used_at > self._config["idle_s"]:
            self._end("no job has used the warm pool for %g s" % self._config["idle_s"])
        elif memory_is_short():
            self._end("memory is short")
        elif not os.path.exists(self._config_path):
            self._end("its directory is gone")

    def _end(self, why: str) -> NoReturn:
        self._send({"event": "ending", "why": why})
        os._exit(0)

    def _send(self, message: Dict[str, Any]) -> None:
        try:
            self._runtime.send(json.dumps(message).encode())
        except OSError:  # the runtime is gone: the next round reads end of file
            pass


def main(argv: List[str], hidden: Hidden) -> NoReturn:
    restore_open_files()
    os.set_inheritable(int(argv[1]), True)  # it survives the exec of `_restart`; launchers close it
    PoolProcess(socket.socket(fileno=int(argv[1])), argv[2], hidden).run()
