"""What of a cluster is still on this machine: for `down`, which removes it and then
says that nothing is left.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.cluster.network import Network
from tests.cluster.node import Node, cgroup_folders
from tests.cluster.places import Places
from tests.cluster.waiting import until

LIMIT_S = 30.0


def found(places: Places) -> list[str]:
    """One line for each thing: processes, links, mounts, cgroups, files. Empty:
    the machine is as it was.
    """
    return [
        *_processes(places),
        *_links(places),
        *_mounts(places),
        *_cgroups(places),
        *_files(places),
    ]


def remove(places: Places) -> None:
    """Ends the processes and removes the rest, however far the cluster's start or end had come."""
    node = Node.of(places)
    if node is not None:
        node.kill()
    for folder in cgroup_folders(places.cgroup):
        _remove_cgroup(folder)
    for link in _links_of(places):
        _remove_link(link)
    if not _mounts(places):  # else it would be removed through the mount
        shutil.rmtree(places.run, ignore_errors=True)


def _remove_cgroup(top: Path) -> None:
    """A cgroup can be removed when the kernel has buried its last process, a
    moment after the process ended.
    """
    for _ in until(LIMIT_S):
        for folder, _names, _files in os.walk(top, topdown=False):
            try:
                os.rmdir(folder)
            except OSError:
                break
        if not top.exists():
            return


def _remove_link(link: Path) -> None:
    """It ends with the network namespace at its other end, which the kernel
    takes apart in the background.
    """
    for _ in until(LIMIT_S):
        if not link.exists():
            return
    subprocess.run(["ip", "link", "delete", link.name], check=False, capture_output=True)


def _processes(places: Places) -> Iterator[str]:
    mark = f"CLUSTER_RUN={places.run}\0".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_bytes():
                command = (
                    (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
                yield f"process {folder.name}: {command[:100]}"
        except OSError:
            continue  # ended meanwhile


def _links_of(places: Places) -> list[Path]:
    network = Network.recorded(places.network)
    link = Path("/sys/class/net") / network.link if network else None
    return [link] if link and link.exists() else []


def _links(places: Places) -> list[str]:
    return [f"link {link.name}" for link in _links_of(places)]


def _mounts(places: Places) -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [
        f"mount {point}"
        for line in lines
        if (point := line.split()[4]).startswith(f"{places.root}/")
    ]


def _cgroups(places: Places) -> list[str]:
    return [f"cgroup {folder}" for folder in cgroup_folders(places.cgroup) if folder.exists()]


def _files(places: Places) -> list[str]:
    return [f"files {places.run}"] if places.run.exists() else []
