"""What is installed for this interpreter: where, and whether it is as it was. Standard library only, Python >= 3.8."""

import os
import sys
from typing import Dict, Tuple

_MARKS = (".dist-info", ".egg-info", ".pth", ".egg-link")
Fingerprint = Dict[str, int]


def folders() -> Tuple[str, ...]:
    """Where installed packages lie, of those that this interpreter looks into."""
    return tuple(path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages"))


def standard() -> Tuple[str, ...]:
    """Where the standard library lies."""
    home = os.path.dirname(os.__file__)
    return (home, os.path.join(home, "lib-dynload"))


def is_standard(name: str) -> bool:
    """This module, which is loaded, is one of the standard library."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    if spec is None and "." in name:  # made by its package, and not by an import
        return is_standard(name.partition(".")[0])
    origin = getattr(spec, "origin", None)
    if origin in ("built-in", "frozen"):
        return True
    roots = tuple(path + os.sep for path in standard())
    return isinstance(origin, str) and origin.startswith(roots) and "-packages" + os.sep not in origin


def fingerprint(paths: Tuple[str, ...]) -> Fingerprint:
    """Another value after every installation, upgrade or removal. An edit by hand inside of a package is not seen."""
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
