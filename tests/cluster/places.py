"""Where everything lies. Pure: paths only, nothing is made or read here.

<home>/                       CLUSTER_HOME, or ~/.cache/kubernetes-test-cluster
  bin/<family>-<digest>/      built once, shared by all clusters
  packages/<digest>/          Debian's packages, unpacked, never installed
  images/<name>-<digest>.tar  image archives
  clusters/<name>/
    run/                      all that `down` removes
    containerd/               image store; kept, so that an image is imported once
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Home:
    """The one directory that holds everything; see the module's picture."""

    root: Path

    @staticmethod
    def of_environment() -> Home:
        """CLUSTER_HOME, else the cache folder of this user."""
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return Home(
            Path(
                os.environ.get("CLUSTER_HOME") or Path(cache) / "kubernetes-test-cluster"
            ).resolve()
        )

    @property
    def bin(self) -> Path:
        return self.root / "bin"

    @property
    def packages(self) -> Path:
        return self.root / "packages"

    @property
    def images(self) -> Path:
        return self.root / "images"

    @property
    def build_lock(self) -> Path:
        """Held while something is built, so that two builds at once don't make it twice."""
        return self.root / "build.lock"

    @property
    def address_lock(self) -> Path:
        """Held from the choice of an address until the link that has it exists."""
        return self.root / "address.lock"

    def cluster(self, name: str) -> Places:
        return Places(name, self.root / "clusters" / name)

    def networks(self) -> list[Path]:
        """The `Places.network` of all clusters that are up, or were and are not removed."""
        return [*self.root.glob("clusters/*/run/network.json")]


@dataclass(frozen=True)
class Places:
    """The directories and files of one cluster."""

    name: str
    root: Path

    @property
    def lock(self) -> Path:
        """Held by the one command that changes the cluster."""
        return self.root / "lock"

    @property
    def taken(self) -> Path:
        """Held by the run of tests that uses this name."""
        return self.root / "taken"

    @property
    def store(self) -> Path:
        return self.root / "containerd"

    @property
    def run(self) -> Path:
        return self.root / "run"

    @property
    def record(self) -> Path:
        """Who is PID 1 of the cluster: written before that process does anything."""
        return self.run / "node.json"

    @property
    def ready(self) -> Path:
        """There once the node's mounts and network are whole."""
        return self.run / "ready"

    @property
    def packages(self) -> Path:
        """There once Debian's packages lie over the cluster's /usr."""
        return self.run / "packages"

    @property
    def furnished(self) -> Path:
        """There once its first objects were made: CRD, roles, webhook, namespaces."""
        return self.run / "furnished"

    @property
    def network(self) -> Path:
        """Which addresses it has: written before the link is made, and
        removed after the link is gone.
        """
        return self.run / "network.json"

    @property
    def pki(self) -> Path:
        return self.run / "pki"

    @property
    def config(self) -> Path:
        return self.run / "config"

    @property
    def log(self) -> Path:
        return self.run / "log"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.config / "admin.kubeconfig"

    @property
    def cgroup(self) -> str:
        """Name of the cgroup, under the root of every hierarchy, that all
        pods of this cluster live in.
        """
        return f"cluster-{self.name}-{hashlib.sha256(bytes(self.root)).hexdigest()[:6]}"
