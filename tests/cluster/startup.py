"""The steps of `up`, in their order. For cluster.py, which holds the cluster's lock meanwhile."""

import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import (
    builds,
    certificates,
    commands,
    images,
    leftovers,
    node as nodes,
    objects,
    programs,
    readiness,
    settings,
)
from tests.cluster.api import Api
from tests.cluster.commands import Machine
from tests.cluster.errors import ApiError
from tests.cluster.layers import components
from tests.cluster.locks import held
from tests.cluster.network import Network, free_network
from tests.cluster.node import Node
from tests.cluster.places import Home, Places
from tests.cluster.readiness import Probed
from tests.cluster.waiting import until

ADDRESS_LOCK_S = 60.0
BEFORE_THE_API = ("etcd", "kube-apiserver", "containerd")
NEEDS_OBJECTS = (*commands.OPERATORS, "coredns")
"""They end, or wait long before they ask again, where their CRD or role is not there yet."""
JOBS_NAMESPACE = "jobs"
JOBS = "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs"
TRAINER_KINDS = (
    ("jobset.x-k8s.io/v1alpha2", "jobsets"),
    ("trainer.kubeflow.org/v1alpha1", "trainjobs", "trainingruntimes", "clustertrainingruntimes"),
)
KUEUE_KINDS = (("kueue.x-k8s.io/v1beta2", *programs.KUEUE_KINDS),)
STALE = (
    "io.containerd.grpc.v1.cri/containers",
    "io.containerd.grpc.v1.cri/sandboxes",
    "io.containerd.runtime.v2.task",
)

STAGES = Path(__file__).parent / "kwok"

Say = Callable[[str], None]


@dataclass(frozen=True)
class Startup:
    """One `up`, on a node that is there."""

    home: Home
    places: Places
    node: Node
    network: Network
    say: Say

    def run(self, layers: Collection[str], recipes: Iterable[str]) -> None:
        """Starts what does not run yet; returns when all of it does its work."""
        wanted = components(layers)
        there = [name for name, program in self.node.programs().items() if program.running]
        machine = Machine(self.home, self.places, self.network, {*wanted, *there})
        if "containerd" in wanted:
            self._lay_packages_over_usr()
        first = [name for name in wanted if name in BEFORE_THE_API]
        self._start(first, machine)
        self._wait(first)
        if "containerd" in wanted:
            self._clean_store(machine)
            self._load(["pause"])
        if "kwok" in wanted:
            _write_stages(self.home, self.places)
        rest = [name for name in wanted if name not in first]
        self._start([name for name in rest if name not in NEEDS_OBJECTS], machine)
        self._make_objects()
        if "trainer-controller-manager" in wanted:
            self._make_more_objects("trainer", self._trainer_objects(), TRAINER_KINDS)
        if "kueue" in wanted:
            self._make_more_objects("kueue", self._kueue_objects(), KUEUE_KINDS)
        self._start([name for name in rest if name in NEEDS_OBJECTS], machine)
        if "containerd" in wanted:
            self._load(recipes)
        self._wait(rest)

    def _start(self, names: Iterable[str], machine: Machine) -> None:
        for name in names:
            self.node.start(name, commands.argv(name, machine), commands.environment(name, machine))

    def _wait(self, names: Iterable[str]) -> None:
        for name in names:
            readiness.wait(name, self.probed)
            self.say(f"{name} is ready")

    def _load(self, recipes: Iterable[str]) -> None:
        for name in recipes:
            images.load(self.node, self.places, images.RECIPES[name], self.home)

    def _lay_packages_over_usr(self) -> None:
        """Once, and only for this layer: the others need none of them."""
        usr = builds.usr(self.home)
        if usr and not self.places.packages.exists():
            self.node.run("mount", "-t", "overlay", "-o", f"lowerdir={usr}:/usr", "overlay", "/usr")
            self.places.packages.touch()

    def _clean_store(self, machine: Machine) -> None:
        """Records of containers that ended with an earlier life of this
        cluster; their images stay.
        """
        if "kubelet" in self.node.programs():
            return
        stale = self.node.run(*images.NAMESPACE, "containers", "list", "--quiet").split()
        if stale:
            self.node.run(*images.NAMESPACE, "containers", "delete", *stale)
            self.node.stop("containerd")
            self._start(["containerd"], machine)
            self._wait(["containerd"])

    def _make_objects(self) -> None:
        """Once in a cluster's life: what a test did to them since is its own affair."""
        if self.places.furnished.exists():
            return
        crd = programs.asset(self.home, "training-operator", "kubeflow.org_pytorchjobs.yaml")
        role = programs.asset(self.home, "training-operator", "role.yaml")
        wanted = [
            *objects.operator(crd, role, self.places.pki),
            *objects.dns(),
            objects.namespace(JOBS_NAMESPACE, "restricted"),
        ]
        for path, body in wanted:
            self.probed.api.apply(path, body)
        for _ in until(readiness.LIMIT_S):
            if self._takes_jobs():
                break
        self.places.furnished.touch()
        self.say("the operator's CRD, webhook and roles are there")

    def _make_more_objects(
        self, of: str, wanted: Iterable[objects.Applied], kinds: Iterable[tuple[str, ...]]
    ) -> None:
        """Once, as above."""
        done = self.places.furnished.with_name(f"furnished-{of}")
        if done.exists():
            return
        for path, body in wanted:
            self.probed.api.apply(path, body)
        for _ in until(readiness.LIMIT_S):
            if all(self._serves(*each) for each in kinds):
                break
        done.touch()
        self.say(f"the CRDs, webhooks and roles of {of} are there")

    def _trainer_objects(self) -> Iterator[objects.Applied]:
        *crds, role = programs.assets(self.home, "trainer")
        jobset_crd, jobset_role = programs.assets(self.home, "jobset")
        yield from objects.trainer(crds, role, jobset_crd, jobset_role, self.places.pki)

    def _kueue_objects(self) -> Iterator[objects.Applied]:
        crds = dict(zip(programs.KUEUE_KINDS, programs.assets(self.home, "kueue"), strict=True))
        yield from objects.kueue(crds, self.network.node_ip, self.places.pki)

    def _serves(self, group: str, *kinds: str) -> bool:
        try:
            return {
                each["name"] for each in self.probed.api.get(f"/apis/{group}")["resources"]
            }.issuperset(kinds)
        except ApiError:
            return False

    def _takes_jobs(self) -> bool:
        """True if the API server validates PyTorchJobs, which it does a moment after
        their CRD is established.
        """
        nothing = {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "metadata": {"name": "probe"},
        }
        try:
            self.probed.api.create(f"{JOBS}?dryRun=All&fieldValidation=Strict", nothing)
        except ApiError as error:
            return error.status != 404 and "Resource kind" not in str(error)  # 422: it has no spec
        return True

    @property
    def probed(self) -> Probed:
        return Probed(self.node, Api(self.places.kubeconfig), self.network)


def new_node(home: Home, places: Places, say: Say) -> Node:
    """A node with certificates and settings, nothing running in it. What an earlier
    one left is removed first.
    """
    leftovers.remove(places)
    for folder in (places.run, places.log, places.config, places.config / "cni", places.store):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name in STALE:
        shutil.rmtree(places.store / name, ignore_errors=True)
    with held(home.address_lock, ADDRESS_LOCK_S, "is choosing an address"):
        network = free_network(home.networks())
        network.record(places.network)
        node = nodes.create(home, places, network)
    _write_settings(home, places, network)
    places.ready.touch()
    say(f"node {network.node_ip} is process {node.pid}")
    return node


def _write_settings(home: Home, places: Places, network: Network) -> None:
    certificates.make(places.pki, network)
    for user in certificates.USERS:
        _write(
            places.config / f"{user}.kubeconfig",
            certificates.kubeconfig(places.pki, user, network.server),
        )
    for name, text in settings.files(places, network).items():
        _write(places.config / name, text)


def _write_stages(home: Home, places: Places) -> None:
    """Once KWOK is built: its own stages come from its module."""
    own = [path.read_text() for path in sorted(STAGES.glob("*.yaml"))]
    _write(places.config / "kwok.yaml", settings.kwok([*programs.assets(home, "kwok"), *own]))


def _write(path: Path, text: str) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
