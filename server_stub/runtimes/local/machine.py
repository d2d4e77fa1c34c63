"""The cores, memory and boot id of this machine, on Linux and macOS. Read once, then passed as a value."""

from __future__ import annotations

import os
import platform
import socket
from dataclasses import dataclass
from pathlib import Path

from client_lib.worker.system import boot_id

GIB = 2**30


@dataclass(frozen=True)
class Machine:
    host: str
    system: str
    """Value of `platform.system()`: Linux or Darwin."""
    cores: int
    """Number that this process may use."""
    memory_gib: float
    boot_id: str
    """Changes with a reboot, which no process survives."""

    @property
    def loopback(self) -> str:
        return "lo0" if self.system == "Darwin" else "lo"


def look() -> Machine:
    return Machine(socket.gethostname(), platform.system(), _cores(), _memory_gib(), boot_id())


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory_gib() -> float:
    """Physical memory, or the limit of this process's control group if that is lower (a container)."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(physical, _cgroup_limit() or physical) / GIB


def _cgroup_limit() -> int | None:
    try:
        text = Path("/sys/fs/cgroup/memory.max").read_text("ascii").strip()
    except OSError:
        return None  # no cgroup v2, or the root group: no limit of its own
    return None if text == "max" else int(text)
