"""Debian's packages, unpacked into a folder of ours: nothing is installed on this machine, no
service starts.

The cluster sees them laid over its own /usr (see startup.py), so that each finds its libraries
where it looks. On a system without apt the same commands are taken from the PATH.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tests.cluster.errors import ClusterError
from tests.cluster.places import Home
from tests.cluster.waiting import until

OTHER_APT_S = 600.0
PACKAGES = ("containerd", "containernetworking-plugins", "mmdebstrap", "nftables", "runc")
COMMANDS = {
    "containerd": ("containerd", "ctr", "runc"),
    "kubelet": ("/usr/lib/cni/bridge",),
    "kube-proxy": ("nft",),
}
"""What each component wants to find in the cluster's /usr."""


def commands(components: Iterable[str]) -> list[str]:
    return [command for name in components for command in COMMANDS.get(name, ())]


def root(home: Home) -> Path:
    """Of the unpacked packages; one for each release of the system and list of packages."""
    release = Path("/etc/os-release")
    recipe = repr(PACKAGES) + (release.read_text() if release.exists() else "")
    return home.packages / hashlib.sha256(recipe.encode()).hexdigest()[:12]


def is_there(home: Home) -> bool:
    return root(home).exists()


def unpack(home: Home) -> None:
    """Downloads and unpacks them with whatever they need that this machine lacks. The
    caller holds the build lock.
    """
    if is_there(home) or not shutil.which("apt-get"):
        return
    home.packages.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.packages) as workspace:
        archives, unpacked = Path(workspace) / "archives", Path(workspace) / "root"
        (archives / "partial").mkdir(parents=True)
        (unpacked / "usr").mkdir(parents=True)
        _download(archives)
        for archive in archives.glob("*.deb"):
            subprocess.run(["dpkg-deb", "--extract", archive, unpacked], check=True)
        unpacked.rename(root(home))


def _download(archives: Path) -> None:
    """apt's own resolver says what is needed; the first try fails where its
    lists are missing or old.
    """
    if _apt_get(*_order(archives)).returncode == 0:
        return
    _apt_get("update", "-q")
    done = _apt_get(*_order(archives))
    if done.returncode != 0:
        raise ClusterError(
            f"apt-get could not download {', '.join(PACKAGES)}:\n{done.stdout.strip()[-2000:]}"
        )


def _order(archives: Path) -> list[str]:
    options = ["--yes", "--quiet", "--download-only", "--reinstall", "--no-install-recommends"]
    return ["install", *options, "-o", f"Dir::Cache::archives={archives}", *PACKAGES]


def _apt_get(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Waits for another apt: its own option waits for dpkg's lock, not for that of the lists."""
    for _ in until(OTHER_APT_S, pause_s=0.5):
        done = subprocess.run(
            ["apt-get", *arguments],
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if "Could not get lock" not in done.stdout:
            break
    return done
