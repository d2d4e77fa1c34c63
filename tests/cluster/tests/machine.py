"""Pictures of this machine, to compare before and after: independent of what the tool
itself believes to be left.
"""

import os
import subprocess
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tests.cluster import Cluster, debian
from tests.cluster.network import Network
from tests.cluster.places import Home

SYSCTLS = (
    "kernel/panic*",
    "kernel/keys/root_max*",
    "vm/overcommit*",
    "vm/panic_on_oom",
    "net/ipv4/ip_forward",
    "net/ipv4/conf/*/*",
)
FOLDERS = (
    "/run",
    "/run/netns",
    "/run/containerd",
    "/var/log",
    "/var/lib",
    "/var/lib/cni",
    "/etc/cni",
    "/opt",
    "/tmp/k8s-webhook-server",
)
NUL = b"\0"


def appeared(cluster: Cluster, before: dict[str, list[str]]) -> dict[str, list[str]]:
    """What is there now and was not; what others took away meanwhile is their affair."""
    now = picture(cluster)
    new = {kind: sorted((Counter(now[kind]) - Counter(before[kind])).elements()) for kind in now}
    return {kind: lines for kind, lines in new.items() if lines}


def picture(cluster: Cluster) -> dict[str, list[str]]:
    """What a cluster could leave behind, by kind, but for what belongs to other clusters that run
    meanwhile.

    Of all processes those that name its folder, and those of pods.
    """
    marks = _marks_of_others(cluster)
    return {
        kind: [line for line in lines if not any(mark in line for mark in marks)]
        for kind, lines in _all(cluster)
    }


def _marks_of_others(cluster: Cluster) -> list[str]:
    marks = []
    for folder in cluster.places.root.parent.glob("*"):
        other = cluster.home.cluster(folder.name)
        if other != cluster.places:
            marks += [f"{other.root}/", other.cgroup]
            if network := Network.recorded(other.network):
                marks += [network.link, f"10.{network.number}."]
    return marks


def _all(cluster: Cluster) -> Iterable[tuple[str, list[str]]]:
    found = {
        "links": sorted(os.listdir("/sys/class/net")),
        "routes": _lines("ip", "route", "show", "table", "all"),
        "rules": _rules(cluster.home),
        "mounts": sorted(
            line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()
        ),
        "cgroups": sorted(
            str(path) for path in Path("/sys/fs/cgroup").glob("*/*") if path.is_dir()
        ),
        "sysctls": _sysctls(),
        "folders": sorted(str(path) for folder in FOLDERS for path in Path(folder).glob("*")),
        "processes": _processes(cluster.places.root),
    }
    return found.items()


def _lines(*argv: str) -> list[str]:
    return subprocess.run(argv, capture_output=True, text=True).stdout.splitlines()


def _rules(home: Home) -> list[str]:
    """By the unpacked nft with its unpacked libraries: it is not installed here."""
    usr = debian.root(home) / "usr"
    libraries = ":".join(map(str, usr.glob("lib/*-linux-gnu")))
    nft = usr / "sbin/nft"
    listed = subprocess.run(
        [nft, "list", "ruleset"], env={"LD_LIBRARY_PATH": libraries}, capture_output=True, text=True
    )
    assert listed.returncode == 0, listed.stderr
    return listed.stdout.splitlines()


def _sysctls() -> list[str]:
    root = Path("/proc/sys")
    return sorted(
        f"{path}={path.read_text().strip()}"
        for each in SYSCTLS
        for path in root.glob(each)
        if os.access(path, os.R_OK)
    )


def _processes(folder_of_cluster: Path) -> list[str]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
            cgroup = (folder / "cgroup").read_text().splitlines()[0]
            variables = (folder / "environ").read_bytes().split(NUL)
        except OSError:
            continue  # ended meanwhile
        program = command.partition(b"\0")[0]
        if bytes(folder_of_cluster) in command or program.endswith(
            (b"containerd-shim-runc-v2", b"/pause")
        ):
            whose = [each for each in variables if each.startswith(b"CLUSTER_RUN=")]
            found.append(
                b" ".join([*command.split(NUL), cgroup.encode(), *whose]).decode(errors="replace")
            )
    return sorted(found)
