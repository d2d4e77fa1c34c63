"""Reads the memory and the CPU time of a process from Linux's /proc."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple


class Memory(NamedTuple):
    """MiB."""

    resident: float
    private: float
    """The part that is freed when the process ends."""
    proportional: float
    """Its part of what it shares with others, too (PSS)."""


def memory_of(pid: int) -> Memory:
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    mib = {
        name: int(kib) / 1024
        for name, kib in re.findall(r"^(\w+):\s+(\d+) kB", rollup, re.MULTILINE)
    }
    return Memory(mib["Rss"], mib["Private_Clean"] + mib["Private_Dirty"], mib["Pss"])


def cpu_s(pid: int) -> float:
    """CPU seconds until now, without those of children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
