"""What of the interpreter the import of a package may change, though a script that doesn't import it must not see it.

The pool looks before and after each import (preload.py), and leaves out what has changed something: there is no telling
how that would go together with what a script has set meanwhile. Standard library only, Python >= 3.8.
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
from typing import Any, Callable, Dict, Optional

_LIMITS = tuple(getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_"))


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _decimal() -> Any:
    context = decimal.getcontext()
    return context.prec, context.rounding, context.Emin, context.Emax, dict(context.traps)


_LOOKS: Dict[str, Callable[[], Any]] = {
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
    "limits of the process": lambda: [resource.getrlimit(limit) for limit in _LIMITS],
}
State = Dict[str, Any]


def state() -> State:
    return {name: look() for name, look in _LOOKS.items()}


def changed(before: State, now: State) -> Optional[str]:
    """What differs, in words."""
    return ", ".join(name for name in _LOOKS if before[name] != now[name]) or None
