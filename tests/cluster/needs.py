"""What this machine must have, and in one line each what it lacks."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

from tests.cluster import debian, programs
from tests.cluster.errors import Missing
from tests.cluster.layers import components
from tests.cluster.node import CGROUPS
from tests.cluster.places import Home

PACKAGE_OF = {"ip": "iproute2", "nsenter": "util-linux", "mount": "mount", "openssl": "openssl"}
CAP_SYS_ADMIN = 21
CONTROLLERS = {"cpu", "memory", "pids"}
"""Without which the kubelet does not start."""


def missing(layers: Collection[str] = ("api",), home: Home | None = None) -> str | None:
    """One line that says what this machine lacks for these layers; None: nothing.

    Never builds or downloads anything. What is built already needs no Go.
    """
    home = home or Home.of_environment()
    checks: list[Callable[[], str | None]] = [
        _system,
        _rights,
        *(partial(_tool, tool) for tool in PACKAGE_OF),
        _overlay,
        partial(_cgroups, layers),
        partial(_go, home, layers),
        partial(_packages, home, layers),
    ]
    for check in checks:
        if lack := check():
            return lack
    return None


def require(layers: Collection[str], home: Home) -> None:
    """Raises `Missing` with that line."""
    if lack := missing(layers, home):
        raise Missing(lack)


def _system() -> str | None:
    return None if sys.platform == "linux" else f"Linux is needed; this is {sys.platform}"


def _rights() -> str | None:
    if os.geteuid() != 0:
        return "root is needed, for namespaces and cgroups; try: sudo -E"
    if not _capabilities() >> CAP_SYS_ADMIN & 1:
        return (
            "this root may not make namespaces (CAP_SYS_ADMIN); in a container, run it with "
            "--privileged"
        )
    return None


def _capabilities() -> int:
    status = Path("/proc/self/status").read_text()
    return int(
        next(line for line in status.splitlines() if line.startswith("CapEff:")).split()[1], 16
    )


def _tool(name: str) -> str | None:
    return (
        None
        if shutil.which(name)
        else f"the command {name} is missing; Debian has it in the package {PACKAGE_OF[name]}"
    )


def _overlay() -> str | None:
    """It may be a module of the kernel that nobody has wanted yet."""
    filesystems = Path("/proc/filesystems")
    if "overlay" not in filesystems.read_text().split() and shutil.which("modprobe"):
        subprocess.run(["modprobe", "--quiet", "overlay"], check=False)
    return (
        None
        if "overlay" in filesystems.read_text().split()
        else "the kernel has no file system overlay"
    )


def _cgroups(layers: Collection[str]) -> str | None:
    if "node" not in layers:
        return None
    if not os.access(CGROUPS, os.W_OK) and not any(
        os.access(each, os.W_OK) for each in CGROUPS.glob("*")
    ):
        return f"{CGROUPS} is not there or can't be written to, where pods get their limits"
    lacking = CONTROLLERS - _controllers()
    return f"{CGROUPS} lacks the controllers {', '.join(sorted(lacking))}" if lacking else None


def _controllers() -> set[str]:
    """Of cgroup v2 or, one folder each, of v1."""
    listed = CGROUPS / "cgroup.controllers"
    return (
        set(listed.read_text().split())
        if listed.exists()
        else {each.name for each in CGROUPS.iterdir()}
    )


def _go(home: Home, layers: Collection[str]) -> str | None:
    wanted = [name for name in [*components(layers), "pause"] if programs.is_built_by_us(name)]
    if all(programs.is_there(home, name) for name in wanted):
        return None
    return programs.lacks_go()


def _packages(home: Home, layers: Collection[str]) -> str | None:
    if debian.is_there(home) or (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        return None
    lacking = [name for name in debian.commands(components(layers)) if not shutil.which(name)]
    return (
        f"not a Debian, and these commands are missing: {', '.join(lacking)}" if lacking else None
    )
