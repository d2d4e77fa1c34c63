"""The pool's process (started by `__main__`): imports packages, then forks a launcher per request.

Its arguments are DESCRIPTOR, CONFIG and ROOM. DESCRIPTOR is its end of a pair of sockets
(SOCK_SEQPACKET, one JSON object per packet), inherited from the runtime: no other process can reach
it, and the pool ends at its end of file.
CONFIG is a JSON file:

    python    the interpreter, as the jobs name it
    modules   modules to import, in this order
    refused   {module: reason why it is left out}; the pool adds to it
    idle_s    seconds without a request after which the pool ends

    runtime -> pool   {"do": "launch", "worker_dir": PATH}
    pool -> runtime   {"event": "ready", "modules": COUNT}
                      {"event": "launched", "worker_dir": PATH}   a launcher runs there, and holds
                                                                  its lock
                      {"event": "gone", "worker_dir": PATH}       the launcher has ended
                      {"event": "ending", "why": TEXT}            no further request is served

Its environment holds MARKER with ROOM as value.

A module is left out if it starts threads or processes, keeps a file open (ranks close all files of
the pool), opens a GPU, changes the state of the interpreter (a script that does not import it must
not see that), or imports code from outside of the installed packages (the user's own, whose edits
must take effect). Its effects cannot be undone in this process: the pool starts again without it.
"""

import builtins
import contextlib
import decimal
import faulthandler
import gc
import json
import locale
import logging
import os
import resource
import select
import signal
import socket
import sys
import threading
import time
import traceback
import warnings
from typing import Any, Callable, Dict, List, Mapping, NoReturn, Optional, Sequence, Set

from client_lib.durable import read_json, write_json
from client_lib.launcher_protocol import processes
from client_lib.launcher_protocol.directory import Directory
from client_lib.worker import memory, system
from client_lib.worker.launcher import run_worker
from client_lib.worker.programs import launcher_command
from client_lib.worker.warm.hidden import OURS, STANDARD, Hidden, Later
from client_lib.worker.warm.rank import Warm, fingerprint, folders, given_environment, show_argv

_POLL_S = 2.0
_OURS = (OURS, "__main__", "__mp_main__")
_REFUSED_MAX = 5  # with more, the modules after the first refused one are not imported


class Unfit(Exception):
    """The module must be left out. `module`: the name in the pool's list."""

    def __init__(self, module: str, why: str) -> None:
        super().__init__(why)
        self.module = module
        self.why = why


class PoolProcess:
    """One per process. `run` never returns."""

    def __init__(self, runtime: socket.socket, config_path: str, hidden: Hidden) -> None:
        self._runtime = runtime
        self._config_path = config_path
        self._hidden = hidden
        self._environment = given_environment()
        self._config: Dict[str, Any] = read_json(config_path) or {}
        self._launchers: Dict[int, str] = {}  # pid -> worker_dir
        self._packages = fingerprint(folders())
        self._warm: Optional[Warm] = None
        self._used_at = time.monotonic()

    def run(self) -> NoReturn:
        gc.disable()
        try:
            names = self._config["modules"]
            refused = self._config["refused"]
            if len(refused) > _REFUSED_MAX:
                names = names[: min(names.index(name) for name in refused if name in names)]
            # the import of a module begins with the import of its package
            below = tuple(name + "." for name in refused)
            preload(
                [name for name in names if name not in refused and not name.startswith(below)],
                self._hidden,
            )
        except Unfit as unfit:
            self._restart(unfit)
        self._hidden.end_learning()
        self._warm = Warm(
            str(self._config["python"]), self._environment, self._hidden, self._packages
        )
        gc.collect()
        gc.freeze()
        count = sum(len(group.modules) for group in self._hidden.groups if not group.standard)
        self._send({"event": "ready", "modules": count})
        self._serve()

    def _restart(self, unfit: Unfit) -> NoReturn:
        """Start again without the module: its effects on this process cannot be undone."""
        self._config["refused"][unfit.module] = unfit.why
        write_json(self._config_path, self._config)
        os.execve(self._config["python"], [self._config["python"]] + sys.argv, self._environment)

    def _serve(self) -> NoReturn:
        wakeup, wakeup_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
        while True:
            ready, _, _ = select.select([self._runtime.fileno(), wakeup], [], [], _POLL_S)
            if wakeup in ready:
                os.read(wakeup, 4096)
            for pid, _ in system.ended_children():
                if pid in self._launchers:
                    self._send({"event": "gone", "worker_dir": self._launchers.pop(pid)})
            if self._runtime.fileno() in ready:
                self._serve_request()
            if time.monotonic() - self._used_at > self._config["idle_s"]:
                self._end("no job has used the warm pool for %g s" % self._config["idle_s"])
            if memory.memory_is_short():
                self._end("memory is short")
            if not os.path.exists(self._config_path):
                self._end("its directory is gone")

    def _serve_request(self) -> None:
        packet = b""
        with contextlib.suppress(ConnectionError):
            packet = self._runtime.recv(65536)
        if not packet:
            os._exit(0)
        if fingerprint(folders()) != self._packages:
            self._end("the installed packages have changed")
        self._used_at = time.monotonic()
        worker_dir = json.loads(packet)["worker_dir"]
        pid = os.fork()
        if pid == 0:
            self._be_launcher(worker_dir)
        self._launchers[pid] = worker_dir

    def _be_launcher(self, worker_dir: str) -> NoReturn:
        """Do the same as `python -m client_lib.worker worker_dir`."""

        def tell() -> None:
            self._send({"event": "launched", "worker_dir": worker_dir})
            self._runtime.close()

        code = 1
        try:
            signal.set_wakeup_fd(-1)
            os.setsid()
            os.chdir(worker_dir)
            self._show_whose(worker_dir)
            output = os.open(
                Directory(worker_dir).output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
            )
            os.dup2(output, 1)
            os.dup2(output, 2)
            code = run_worker(worker_dir, self._warm, tell)
        except BaseException:  # noqa: BLE001  (the callers must not continue in this process)
            traceback.print_exc()
        finally:
            os._exit(code)

    def _show_whose(self, worker_dir: str) -> None:
        """Make ps show this process as a launcher, with its job and worker."""
        plan = read_json(Directory(worker_dir).plan) or {}
        whose = "job %s, worker %s" % (plan.get("job"), plan.get("worker"))
        show_argv([*launcher_command(worker_dir, str(self._config["python"])), whose])

    def _end(self, why: str) -> NoReturn:
        self._send({"event": "ending", "why": why})
        os._exit(0)

    def _send(self, message: Mapping[str, object]) -> None:
        with contextlib.suppress(OSError):  # the runtime is gone: the next round reads end of file
            self._runtime.send(json.dumps(message).encode())


def main(argv: List[str], hidden: Hidden) -> NoReturn:
    system.restore_open_files()
    system.Linux()  # a process whose parent has ended becomes a child of this one, and so is seen
    _kill_children()
    os.set_inheritable(int(argv[1]), True)  # it survives the exec of `_restart`; launchers close it
    PoolProcess(socket.socket(fileno=int(argv[1])), argv[2], hidden).run()


def _kill_children() -> None:
    """Kill what a refused import has started: it survives `_restart`, but the threads
    that could start more do not.
    """
    while system.has_children():
        for pid in processes.below(os.getpid()):
            with contextlib.suppress(ProcessLookupError):  # its parent has reaped it
                os.kill(pid, signal.SIGKILL)
        os.waitpid(-1, 0)


# --- importing


def preload(names: Sequence[str], hidden: Hidden) -> None:
    """Import the modules in `names` that are installed, and hide them. Raises Unfit."""
    initial = _interpreter_state()
    checked: Set[str] = set()
    roots = (STANDARD, *(path + os.sep for path in folders()))

    def is_foreign(name: str) -> bool:
        file = getattr(sys.modules.get(name), "__file__", None)
        if not isinstance(file, str) or name.startswith(_OURS):
            return False
        return os.path.isabs(file) and not file.startswith(roots)

    def judge(name: str) -> None:
        new = [other for other in sys.modules if other not in checked]
        checked.update(new)
        foreign = next(filter(is_foreign, new), None)
        now = _interpreter_state()
        changed = ", ".join(part for part in _STATE_OF if initial[part] != now[part])
        why = (
            trouble()
            or (foreign and foreign + " is no installed package")
            or (changed and "it changes " + changed)
        )
        if why:
            raise Unfit(name, why)

    for name in hidden.in_order(list(names)):
        try:
            hidden.learn(name, judge)
        except Later:
            pass
        except Unfit:
            raise
        except ModuleNotFoundError as error:
            if not name.startswith(str(error.name)):  # otherwise uninstalled meanwhile
                raise Unfit(name, str(error)) from error
        except Exception as error:  # noqa: BLE001  (a package may raise anything: it is left out)
            raise Unfit(name, "its import fails: %s" % type(error).__name__) from error


def trouble() -> Optional[str]:
    """The reason why this process cannot be forked any more; None: it can."""
    if len(os.listdir("/proc/self/task")) > 1:
        return "it starts threads"
    if system.has_children():
        return "it starts processes"
    if any(
        target.startswith(("/dev/nvidia", "/dev/kfd", "/dev/dri"))
        for target in processes.open_files(os.getpid())
    ):
        return "it opens a GPU"
    return None


# --- the state of the interpreter

_RLIMITS = tuple(getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_"))


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _decimal() -> Any:
    context = decimal.getcontext()
    return context.prec, context.rounding, context.Emin, context.Emax, dict(context.traps)


_STATE_OF: Dict[str, Callable[[], Any]] = {
    "the root logger": lambda: (
        list(logging.root.handlers),
        logging.root.level,
        logging.root.manager.disable,
        logging.getLoggerClass(),
    ),
    "signal handlers": lambda: {
        signum: signal.getsignal(signum) for signum in signal.valid_signals()
    },
    "faulthandler": faulthandler.is_enabled,
    "excepthook": lambda: (
        sys.excepthook,
        sys.displayhook,
        getattr(sys, "unraisablehook", None),
        threading.excepthook,
    ),
    "the way warnings are shown": lambda: (warnings.showwarning, warnings.formatwarning),
    "sys.path": lambda: (list(sys.path), list(sys.path_hooks)),
    "the open files": lambda: sorted(processes.open_files(os.getpid())),
    "the standard streams": lambda: (sys.stdin, sys.stdout, sys.stderr),
    "builtins": lambda: sorted(vars(builtins)),
    "the interpreter's limits": lambda: (
        sys.getrecursionlimit(),
        sys.getswitchinterval(),
        gc.get_threshold(),
    ),
    "tracing": lambda: (sys.gettrace(), sys.getprofile()),
    "the locale": lambda: locale.setlocale(locale.LC_ALL),
    "the decimal context": _decimal,
    "the timeout of sockets": socket.getdefaulttimeout,
    "the umask": _umask,
    "limits of the process": lambda: [resource.getrlimit(limit) for limit in _RLIMITS],
}


def _interpreter_state() -> Dict[str, Any]:
    return {name: read() for name, read in _STATE_OF.items()}
