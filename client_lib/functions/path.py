"""Where the caller's own modules are: which entries of sys.path travel, which modules can't be imported elsewhere."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from functools import cache
from types import ModuleType

_OURS = "client_lib"


def entries(root: str | None) -> list[str]:
    """The caller's own entries of sys.path, those of no installation. `root`: of a snapshot, and then they are relative
    to it and those outside are left out; None: in place, absolute."""
    own = [os.path.abspath(entry) for entry in sys.path if not _installed(os.path.abspath(entry))]
    if root is None:
        return list(dict.fromkeys(own))
    inside = [os.path.realpath(entry) for entry in own if _below(os.path.realpath(entry), root)]
    return list(dict.fromkeys(os.path.relpath(entry, root) for entry in inside))


def modules_elsewhere(root: str) -> list[ModuleType]:
    """Top-level modules of the caller's that lie neither in the snapshot's folder nor in an installation."""
    found = []
    for name, module in list(sys.modules.items()):
        if "." in name or name in ("__main__", "__mp_main__", _OURS):
            continue
        path = _file_of(module)
        if path is not None and not _installed(path) and not _below(os.path.realpath(path), root):
            found.append(module)
    return found


def _file_of(module: ModuleType) -> str | None:
    """Of a module written in Python; None for others."""
    path = getattr(module, "__file__", None)
    return os.path.abspath(path) if isinstance(path, str) and path.endswith(".py") else None


def _installed(path: str) -> bool:
    return any(_below(path, folder) for folder in _installations())


@cache
def _installations() -> tuple[str, ...]:
    """Folders of the interpreter and of installed packages."""
    paths = sysconfig.get_paths()
    found = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    found += [*site.getsitepackages(), site.getusersitepackages()]
    found += [os.path.join(sys.base_prefix, folder) for folder in dict.fromkeys((sys.platlibdir, "lib"))]
    return tuple(dict.fromkeys(map(os.path.abspath, found)))


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)
