"""Memory of this machine, and of the control group (the container) of this process (Linux)."""

from typing import List, Optional, Tuple

from client_lib.launcher_protocol.processes import content, number

_MEMINFO = "/proc/meminfo"
# bytes; version 1 of control groups has a number of this size where there is no limit
_UNLIMITED = 2**60
_SHORT = 0.05  # memory is short if a smaller part is available


def out_of_memory_kills() -> int:
    """Number of processes that the kernel has killed for lack of memory, in this
    cgroup or on this machine.
    """
    return max(
        number(path, b"oom_kill ")
        for path in ("/proc/vmstat", _memory_groups()[0] + "/memory.events")
    )


def memory_kills() -> Tuple[int, int]:
    """`out_of_memory_kills`, and the number of processes of this control group (the container) that
    the kernel has killed because its memory limit was reached."""
    events = ("/memory.events", "/memory.oom_control")  # of versions 2 and 1
    of_group = max(
        number(folder + name, b"oom_kill ") for folder in _memory_groups() for name in events
    )
    return out_of_memory_kills(), of_group


def memory_is_short() -> bool:
    """The machine, or the control group of this process, has hardly any memory left (Linux)."""
    total, available = (number(_MEMINFO, name) for name in (b"MemTotal:", b"MemAvailable:"))
    return (memory_of_limit() or 0.0) > 1 - _SHORT or available < _SHORT * total


def memory_of_limit() -> Optional[float]:
    """The part of its memory limit that the control group of this process (the container) uses,
    apart from what the kernel drops when it needs memory; None: there is no limit (Linux)."""
    version_2 = ("/memory.max", "/memory.current", b"inactive_file ")
    version_1 = ("/memory.limit_in_bytes", "/memory.usage_in_bytes", b"total_inactive_file ")
    for place, folder in enumerate(_memory_groups()):
        most, current, cached = version_1 if place else version_2
        limit, used = (content(folder + name).strip() for name in (most, current))
        if limit.isdigit() and used.isdigit() and 0 < int(limit) < _UNLIMITED:
            return (int(used) - number(folder + "/memory.stat", cached)) / int(limit)
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
