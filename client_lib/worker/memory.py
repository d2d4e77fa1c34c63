"""Memory of this machine, and of the control group (the container) of this process (Linux)."""

from typing import List, NamedTuple, Optional

from client_lib.launcher_protocol.processes import content, number

_MEMINFO = "/proc/meminfo"
_UNLIMITED = 2**60
"""Bytes; version 1 of control groups has a number of this size where there is no limit."""
_SHORT = 0.05
"""Memory is short if less than this part of it is available."""


class _Names(NamedTuple):
    """Names of one version of control groups."""

    limit: str
    """File with the memory limit."""
    used: str
    """File with the memory that is used."""
    cached: bytes
    """Line of memory.stat with what the kernel drops when it needs memory."""


_VERSION_1 = _Names("/memory.limit_in_bytes", "/memory.usage_in_bytes", b"total_inactive_file ")
_VERSION_2 = _Names("/memory.max", "/memory.current", b"inactive_file ")


def out_of_memory_kills() -> int:
    """Number of processes that the kernel has killed for lack of memory, in this
    cgroup or on this machine.
    """
    return max(
        number(path, b"oom_kill ")
        for path in ("/proc/vmstat", _memory_groups()[0] + "/memory.events")
    )


class MemoryKills(NamedTuple):
    """Numbers of processes that the kernel has killed."""

    all: int
    """The number of `out_of_memory_kills`."""
    of_group: int
    """Processes of this control group (the container), whose memory limit was reached."""


def memory_kills() -> MemoryKills:
    events = ("/memory.events", "/memory.oom_control")  # of versions 2 and 1
    of_group = max(
        number(folder + name, b"oom_kill ") for folder in _memory_groups() for name in events
    )
    return MemoryKills(out_of_memory_kills(), of_group)


def memory_is_short() -> bool:
    """The machine, or the control group of this process, has hardly any memory left (Linux)."""
    used_of_limit = memory_of_limit()
    if used_of_limit is not None and used_of_limit > 1 - _SHORT:
        return True
    return number(_MEMINFO, b"MemAvailable:") < _SHORT * number(_MEMINFO, b"MemTotal:")


def memory_of_limit() -> Optional[float]:
    """The part of its memory limit that the control group of this process (the container) uses,
    apart from what the kernel drops when it needs memory; None: there is no limit (Linux)."""
    for place, folder in enumerate(_memory_groups()):
        names = _VERSION_1 if place else _VERSION_2
        limit = content(folder + names.limit).strip()
        used = content(folder + names.used).strip()
        if limit.isdigit() and used.isdigit() and 0 < int(limit) < _UNLIMITED:
            dropped = number(folder + "/memory.stat", names.cached)
            return (int(used) - dropped) / int(limit)
    return None


def _memory_groups() -> List[str]:
    """Folders of the control groups of this process: the folder of version 2, then the folders of
    version 1; the last one is where a container has its mount."""
    lines = content("/proc/self/cgroup").decode().splitlines()
    version_2 = next((line[3:] for line in lines if line.startswith("0::")), "")
    version_1 = [line.split(":", 2)[2].rstrip("/") for line in lines if ":memory:" in line]
    return [
        "/sys/fs/cgroup" + version_2,
        *("/sys/fs/cgroup/memory" + group for group in (*version_1, "")),
    ]
