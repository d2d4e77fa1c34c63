"""Imports packages into the pool, one after the other, and detects those that must not be imported before a fork.

A module is left out if it starts threads or processes, opens a GPU, changes the state of the interpreter (a script that
does not import it must not see that), or imports code from outside of the installed packages (the user's own, whose
edits must take effect). Its effects cannot be undone in this process: the pool starts again without it.
"""

import builtins
import decimal
import faulthandler
import gc
import locale
import logging
import os
import resource
import signal
import socket
import sys
import threading
import warnings
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

from client_lib.worker.system import content, has_children, open_files
from client_lib.worker.warm.hidden import OURS, Hidden, Later, standard

_MARKS = (".dist-info", ".egg-info", ".pth", ".egg-link")
Fingerprint = Dict[str, int]
_OURS = (OURS, "__main__", "__mp_main__")


class Unfit(Exception):
    """The module must be left out. `module`: the name in the pool's list."""

    def __init__(self, module: str, why: str) -> None:
        super().__init__(why)
        self.module, self.why = module, why


def preload(names: Sequence[str], hidden: Hidden) -> None:
    """Import those of `names` that are installed, and hide them. Raises Unfit."""
    initial = _interpreter_state()
    checked: Set[str] = set()

    def judge(name: str) -> None:
        new = [other for other in sys.modules if other not in checked]
        checked.update(new)
        now = _interpreter_state()
        changed = ", ".join(part for part in _STATE_OF if initial[part] != now[part])
        why = trouble() or _foreign(new) or (changed and "it changes " + changed)
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


def _foreign(names: List[str]) -> Optional[str]:
    roots = tuple(path + os.sep for path in folders() + standard())
    for name in names:
        file = getattr(sys.modules.get(name), "__file__", None)
        if isinstance(file, str) and os.path.isabs(file) and not file.startswith(roots) and not name.startswith(_OURS):
            return "%s is no installed package" % name
    return None


def trouble() -> Optional[str]:
    """The reason why this process cannot be forked any more; None: it can."""
    if len(os.listdir("/proc/self/task")) > 1:
        return "it starts threads"
    if has_children():
        return "it starts processes"
    if any(target.startswith(("/dev/nvidia", "/dev/kfd", "/dev/dri")) for target in open_files(os.getpid())):
        return "it opens a GPU"
    return None


def end_children() -> None:
    """Kill processes that an import has started: they would survive an exec."""
    while has_children():
        for pid in content("/proc/self/task/%d/children" % os.getpid()).split():
            os.kill(int(pid), signal.SIGKILL)
        os.waitpid(-1, 0)


# --- the installed packages


def folders() -> Tuple[str, ...]:
    """Folders of installed packages on this interpreter's sys.path."""
    return tuple(path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages"))


def fingerprint(paths: Tuple[str, ...]) -> Fingerprint:
    """A value that changes with every installation, upgrade or removal, but not with an edit inside of a package."""
    found = {}
    for path in paths:
        try:
            entries = list(os.scandir(path))
        except OSError:
            continue
        for entry in entries:
            if entry.name.endswith(_MARKS):
                found[entry.path] = entry.stat().st_mtime_ns
    return found


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
    "signal handlers": lambda: {signum: signal.getsignal(signum) for signum in signal.valid_signals()},
    "faulthandler": faulthandler.is_enabled,
    "excepthook": lambda: (sys.excepthook, sys.displayhook, getattr(sys, "unraisablehook", None), threading.excepthook),
    "the way warnings are shown": lambda: (warnings.showwarning, warnings.formatwarning),
    "sys.path": lambda: (list(sys.path), list(sys.path_hooks)),
    "the standard streams": lambda: (sys.stdin, sys.stdout, sys.stderr),
    "builtins": lambda: sorted(vars(builtins)),
    "the interpreter's limits": lambda: (sys.getrecursionlimit(), sys.getswitchinterval(), gc.get_threshold()),
    "tracing": lambda: (sys.gettrace(), sys.getprofile()),
    "the locale": lambda: locale.setlocale(locale.LC_ALL),
    "the decimal context": _decimal,
    "the timeout of sockets": socket.getdefaulttimeout,
    "the umask": _umask,
    "limits of the process": lambda: [resource.getrlimit(limit) for limit in _RLIMITS],
}


def _interpreter_state() -> Dict[str, Any]:
    return {name: read() for name, read in _STATE_OF.items()}
