"""This machine: its cores and memory, read once."""

import os
import socket
import sys
from dataclasses import dataclass

from client_lib.launcher_protocol.processes import boot_id, content

GIB = 2**30


@dataclass(frozen=True)
class Machine:
    host: str
    loopback: str
    """Name of the network interface that reaches this machine itself."""
    cores: int
    """Number that this process may use."""
    memory_gib: float
    boot_id: str
    """Changes with a reboot, which no process survives."""


def look() -> Machine:
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    # there is no such file without cgroup v2 or in the root group
    limit = content("/sys/fs/cgroup/memory.max").strip()
    if limit.isdigit():  # of this process's control group (a container)
        memory = min(memory, int(limit))
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    return Machine(socket.gethostname(), loopback, cores, memory / GIB, boot_id())
