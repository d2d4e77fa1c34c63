"""Whether this machine, or the control group of this process, is short of memory. Standard library only, >= 3.8."""

from typing import Optional

_SHORT = 0.05  # of all memory
_GROUP = "/sys/fs/cgroup"


def is_short() -> bool:
    """So little is left that what is only kept for speed must go."""
    total, available = _of_machine()
    limit, used = _number("memory.max"), _number("memory.current")
    group_short = limit is not None and used is not None and (limit - used) + _reclaimable() < _SHORT * limit
    return group_short or (total > 0 and available < _SHORT * total)


def _of_machine() -> "tuple[int, int]":
    """(total, available) in bytes; (0, 0) where that can't be known."""
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


def _number(name: str) -> Optional[int]:
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
