"""State of this machine that decides over the pool: its installed packages and its free memory."""

import os
import sys
from typing import Dict, Optional, Tuple

_MARKS = (".dist-info", ".egg-info", ".pth", ".egg-link")
_SHORT = 0.05  # of all memory
_GROUP = "/sys/fs/cgroup"
Fingerprint = Dict[str, int]


def folders() -> Tuple[str, ...]:
    """Folders of installed packages on this interpreter's sys.path."""
    return tuple(path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages"))


def standard() -> Tuple[str, ...]:
    """Folders of the standard library."""
    home = os.path.dirname(os.__file__)
    return (home, os.path.join(home, "lib-dynload"))


def is_standard(name: str) -> bool:
    """A loaded module belongs to the standard library."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    if spec is None and "." in name:  # made by its package, without an import
        return is_standard(name.partition(".")[0])
    origin = getattr(spec, "origin", None)
    if origin in ("built-in", "frozen"):
        return True
    roots = tuple(path + os.sep for path in standard())
    return isinstance(origin, str) and origin.startswith(roots) and "-packages" + os.sep not in origin


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


def memory_is_short() -> bool:
    """The machine, or the control group of this process, has so little memory left that the pool must end."""
    total, available = _memory()
    limit, used = _group_bytes("memory.max"), _group_bytes("memory.current")
    group_short = limit is not None and used is not None and (limit - used) + _reclaimable() < _SHORT * limit
    return group_short or (total > 0 and available < _SHORT * total)


def _memory() -> "tuple[int, int]":
    """(total, available) bytes of the machine; (0, 0): unknown."""
    found = {}
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                name, _, rest = line.partition(":")
                found[name] = int(rest.split()[0]) * 1024
    except OSError:
        return 0, 0
    return found.get("MemTotal", 0), found.get("MemAvailable", 0)


def _own_group() -> str:
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            lines = file.read().splitlines()
    except OSError:
        return _GROUP
    return _GROUP + next((line[3:] for line in lines if line.startswith("0::")), "")


def _group_bytes(name: str) -> Optional[int]:
    try:
        with open("%s/%s" % (_own_group(), name), encoding="ascii") as file:
            text = file.read().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _reclaimable() -> int:
    """Bytes of the group that are only a cache of files."""
    try:
        with open(_own_group() + "/memory.stat", encoding="ascii") as file:
            return sum(int(line.split()[1]) for line in file if line.startswith("inactive_file "))
    except OSError:
        return 0
