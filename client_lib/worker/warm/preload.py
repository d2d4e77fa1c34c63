"""Imports packages into the pool, one after the other, and sees which of them must not be imported before a fork.

A module is left out that starts threads or processes, opens a GPU, changes the interpreter (interpreter.py), or brings
in code from outside of the installed packages (the user's own, whose edits must count). What it did can't be undone in
this process: the pool begins anew without it.

Standard library only, Python >= 3.8.
"""

import importlib
import os
import signal
import sys
import warnings
from typing import Any, Dict, List, Optional, Sequence

from client_lib.worker.warm import interpreter, packages
from client_lib.worker.warm.at_exit import Recorder
from client_lib.worker.warm.hidden import Group

_OURS = ("client_lib", "__main__", "__mp_main__")


class Unfit(Exception):
    """The module must be left out. `module` is what the pool was told to import."""

    def __init__(self, module: str, why: str) -> None:
        super().__init__(why)
        self.module, self.why = module, why


def preload(names: Sequence[str]) -> List[Group]:
    """Import what is installed of `names`; raises Unfit."""
    with Recorder() as recorder:
        return _groups(names, recorder)


def _groups(names: Sequence[str], recorder: Recorder) -> List[Group]:
    groups = []
    as_it_is = interpreter.state()
    for name in names:
        if name in sys.modules:
            continue
        before, filters, variables = set(sys.modules), list(warnings.filters), dict(os.environ)
        finders = list(sys.meta_path)
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if name.startswith(str(error.name)):  # uninstalled meanwhile
                continue
            raise Unfit(name, str(error)) from error
        except Exception as error:  # noqa: BLE001  (whatever a package says: without it, then)
            raise Unfit(name, "its import fails: %s" % type(error).__name__) from error
        new = [other for other in sys.modules if other not in before]
        changed = interpreter.changed(as_it_is, interpreter.state())
        why = trouble() or _foreign(new) or (changed and "it changes " + changed)
        if why:
            raise Unfit(name, why)
        added = [finder for finder in sys.meta_path if finder not in finders]
        groups.append(Group(_packaged(new), _added(filters), _set(variables), added, recorder.take()))
    return groups


def _packaged(names: List[str]) -> Dict[str, Any]:
    """Those that are not of the standard library."""
    return {name: sys.modules[name] for name in names if not name.startswith(_OURS) and not packages.is_standard(name)}


def _added(filters: List[Any]) -> List[Any]:
    count = len(warnings.filters) - len(filters)
    return list(warnings.filters[:count]) if count > 0 else []


def _set(variables: Dict[str, str]) -> Dict[str, str]:
    return {name: value for name, value in os.environ.items() if variables.get(name) != value}


def _foreign(names: List[str]) -> Optional[str]:
    roots = tuple(path + os.sep for path in packages.folders() + packages.standard())
    for name in names:
        file = getattr(sys.modules.get(name), "__file__", None)
        if isinstance(file, str) and os.path.isabs(file) and not file.startswith(roots) and not name.startswith(_OURS):
            return "%s is no installed package" % name
    return None


def trouble() -> Optional[str]:
    """Why this process can't be forked any more."""
    if len(os.listdir("/proc/self/task")) > 1:
        return "it starts threads"
    if _has_children():
        return "it starts processes"
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink("/proc/self/fd/" + fd)
        except OSError:  # the descriptor of the listing itself
            continue
        if target.startswith(("/dev/nvidia", "/dev/kfd", "/dev/dri")):
            return "it opens a GPU"
    return None


def end_children() -> None:
    """What an import has started would be there after an exec, too."""
    while _has_children():
        with open("/proc/self/task/%d/children" % os.getpid(), encoding="ascii") as file:
            for pid in file.read().split():
                os.kill(int(pid), signal.SIGKILL)
        os.waitpid(-1, 0)


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
