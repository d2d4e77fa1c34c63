"""One cluster: up, down, and what tests do to it in between. The one class that other
modules of a project use.
"""

import shutil
import signal
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster import builds, images, leftovers, needs, objects, readiness
from tests.cluster.api import Api
from tests.cluster.errors import ClusterError
from tests.cluster.layers import components, layers_of
from tests.cluster.locks import held
from tests.cluster.network import Network
from tests.cluster.node import Node, Program
from tests.cluster.places import Home, Places
from tests.cluster.readiness import Probed
from tests.cluster.startup import Startup, new_node
from tests.cluster.waiting import until

LOCK_S = 120.0
DEATH_S = 30.0

Say = Callable[[str], None]


def silent(_line: str) -> None:
    """Nobody listens."""


@dataclass(frozen=True)
class Cluster:
    """A cluster by name. Making this object touches nothing; two names are two
    clusters, which may run at once.
    """

    name: str = "default"
    home: Home = field(default_factory=Home.of_environment)

    @property
    def places(self) -> Places:
        return self.home.cluster(self.name)

    @property
    def kubeconfig(self) -> Path:
        """The administrator's, certificate inside. The file is there while the cluster is."""
        return self.places.kubeconfig

    @property
    def api(self) -> Api:
        """As administrator. Raises ClusterError where the cluster is not up."""
        self.node()
        return Api(self.kubeconfig)

    @property
    def network(self) -> Network:
        """Raises ClusterError where the cluster is not up."""
        self.node()
        known = Network.recorded(self.places.network)
        assert known is not None
        return known

    def node(self) -> Node:
        """Raises ClusterError where the cluster is not up."""
        if not self.is_up():
            raise ClusterError(f"cluster '{self.name}' is not up; `up` starts it")
        node = Node.of(self.places)
        assert node is not None
        return node

    def is_up(self) -> bool:
        """Whether its node lives and answers; single programs may have ended."""
        node = Node.of(self.places)
        return node is not None and self.places.ready.exists() and node.answers()

    def up(
        self, layers: Collection[str], recipes: Iterable[str] = ("python",), say: Say = silent
    ) -> None:
        """Brings these layers up, beside what runs already; returns when each program does its
        work.

        Builds what was never built (minutes). What runs as wanted is left alone. `recipes`: images
        for the node.

        Raises:
            Missing: the machine lacks something; nothing was changed.
            Unready: a program did not come up; the others go on running, and `down` removes them.
        """
        needs.require(layers, self.home)
        names = ["pause", *recipes] if "node" in layers else []
        builds.build(self.home, components(layers), names, say)
        with self._locked():
            node = self.node() if self.is_up() else new_node(self.home, self.places, say)
            Startup(self.home, self.places, node, self.network, say).run(layers, names)

    def down(self, images_too: bool = False) -> None:
        """Removes it. Never up, half up or killed: afterwards nothing is left but its store of
        images.

        The store spares the next `up` seconds, minutes for large images; `images_too` removes it as
        well.

        Raises:
            ClusterError: something would not go; the text names it.
        """
        with self._locked():
            leftovers.remove(self.places)
            left = leftovers.found(self.places)
            if images_too and not left:
                shutil.rmtree(self.places.store, ignore_errors=True)
        if left:
            raise ClusterError("these could not be removed:\n" + "\n".join(left))

    def leftovers(self) -> list[str]:
        """What of it is on this machine now, one line each."""
        return leftovers.found(self.places)

    def programs(self) -> dict[str, Program]:
        """Everything that was started, running or ended."""
        return self.node().programs()

    def layers(self) -> set[str]:
        """The layers of which every program runs."""
        return layers_of(name for name, program in self.programs().items() if program.running)

    def stop(self, name: str) -> None:
        """SIGTERM to one program, SIGKILL after a while; returns when it has
        ended. `start` brings it back.
        """
        self._known(name)
        self.node().stop(name)

    def kill(self, name: str) -> None:
        """SIGKILL to one program; returns when it has ended."""
        self._known(name)
        node = self.node()
        node.signal(name, signal.SIGKILL)
        for _ in until(DEATH_S):
            if not node.programs()[name].running:
                return

    def start(self, name: str, wait: bool = True) -> None:
        """Starts a program that has ended, as it was; `wait`: until it does its work."""
        known, node = self._known(name), self.node()
        node.start(name, known.argv, known.env)
        if wait:
            readiness.wait(name, Probed(node, self.api, self.network))

    def load(self, what: str) -> list[str]:
        """Loads an image: a recipe's name, or the path of an OCI or Docker archive.
        Returns the images' names.
        """
        node = self.node()
        if "containerd" not in node.programs():
            raise ClusterError(
                f"cluster '{self.name}' has no real node to load an image into; `up node` adds one"
            )
        if what not in images.RECIPES:
            return images.load_archive(node, Path(what))
        recipe = images.RECIPES[what]
        builds.build(self.home, [], [what], silent)
        with self._locked():
            images.load(node, self.places, recipe, self.home)
        return [recipe.reference]

    def namespace(self, name: str, level: str = "restricted") -> None:
        """Makes a namespace with Pod Security enforced at `level`:
        privileged, baseline or restricted.
        """
        self.api.apply(*objects.namespace(name, level))

    def fake_nodes(self, count: int, capacity: dict[str, str], prefix: str = "fake") -> list[str]:
        """Makes nodes `<prefix>-0` and so on that KWOK keeps Ready; returns
        their names when they are.
        """
        if "kwok" not in self.programs():
            raise ClusterError(f"cluster '{self.name}' has no KWOK; `up kwok` adds it")
        api, names = self.api, [f"{prefix}-{index}" for index in range(count)]
        there = {node["metadata"]["name"] for node in api.get("/api/v1/nodes")["items"]}
        for name in names:
            if name not in there:
                api.create("/api/v1/nodes", objects.fake_node(name, capacity))
        for _ in until(readiness.LIMIT_S, pause_s=0.2):
            items = api.get("/api/v1/nodes?labelSelector=type%3Dkwok")["items"]
            if set(names) <= {
                node["metadata"]["name"] for node in items if readiness.node_is_ready(node)
            }:
                return names
        raise ClusterError(
            f"fake nodes are not Ready after {readiness.LIMIT_S:g} s; see "
            f"{self.places.log}/kwok.log"
        )

    def _known(self, name: str) -> Program:
        known = self.programs()
        if name not in known:
            raise ClusterError(
                f"cluster '{self.name}' has no program '{name}'; it has {', '.join(known)}"
            )
        return known[name]

    def _locked(self) -> AbstractContextManager[None]:
        return held(self.places.lock, LOCK_S, f"is changing cluster '{self.name}'")
