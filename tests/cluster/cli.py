"""What each word of the command line does: calls of `Cluster`, and lines. arguments.py
says which words there are.
"""

import json
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Sequence

from tests.cluster import builds, images, layers, needs, programs
from tests.cluster.arguments import parser
from tests.cluster.cluster import Cluster
from tests.cluster.errors import ClusterError
from tests.cluster.places import Home

NOT_UP = 3
"""Exit code of `status` for a cluster that is not up, as init scripts have it."""
GPU_NODE = {"cpu": "96", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": "8"}


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0, 1 failed, 2 usage, 3 not up (`status`), 69 the machine lacks something."""
    words = parser().parse_args(argv)
    cluster = Cluster(words.name, words.home or Home.of_environment())
    try:
        return int(COMMANDS[words.command](cluster, words) or 0)
    except ClusterError as error:
        print(f"cluster: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("cluster: interrupted; `down` removes what was begun", file=sys.stderr)
        return 130


def _up(cluster: Cluster, words: Namespace) -> None:
    say = Clock()
    cluster.up(words.layers or ["node"], words.image or ["python"], say)
    say(f"cluster '{cluster.name}' is up: {', '.join(sorted(cluster.layers()))}")
    print(f"export KUBECONFIG={cluster.kubeconfig}")


def _down(cluster: Cluster, words: Namespace) -> None:
    say = Clock()
    cluster.down(images_too=words.images)
    say(f"cluster '{cluster.name}' is down, nothing is left")


def _build(cluster: Cluster, words: Namespace) -> None:
    wanted = words.layers or list(layers.LAYERS)
    recipes = ["pause", *(words.image or ["python"])] if "node" in wanted else []
    needs.require(wanted, cluster.home)
    builds.build(cluster.home, [*layers.components(wanted), "kubectl", "helm"], recipes, Clock())


def _status(cluster: Cluster, words: Namespace) -> int:
    document = status_of(cluster)
    print(json.dumps(document, indent=2) if words.output == "json" else as_text(document))
    return 0 if document["up"] else NOT_UP


def status_of(cluster: Cluster) -> dict[str, object]:
    if not cluster.is_up():
        return {"name": cluster.name, "up": False, "leftovers": cluster.leftovers()}
    known = cluster.programs()
    return {
        "name": cluster.name,
        "up": True,
        "layers": sorted(cluster.layers()),
        "server": cluster.network.server,
        "kubeconfig": str(cluster.kubeconfig),
        "log": str(cluster.places.log),
        "programs": [
            f"{each.name}: {'runs' if each.running else f'ended, exit code {each.exit_code}'}"
            for each in known.values()
        ],
    }


def as_text(status: dict[str, object]) -> str:
    lines = [f"cluster '{status['name']}' is {'up' if status['up'] else 'not up'}"]
    for key, value in status.items():
        if isinstance(value, list):
            lines += [f"{key}:", *(f"  {each}" for each in value)] if value else []
        elif key not in ("name", "up"):
            lines.append(f"{key}: {value}")
    return "\n".join(lines)


def _kubeconfig(cluster: Cluster, words: Namespace) -> None:
    cluster.node()
    print(cluster.kubeconfig.read_text() if words.text else cluster.kubeconfig)


def _layers(_cluster: Cluster, _words: Namespace) -> None:
    for name, meaning in layers.MEANING.items():
        print(f"{name:<5} {meaning}\n      {', '.join(layers.LAYERS[name])}")


def _images(cluster: Cluster, _words: Namespace) -> None:
    for recipe in images.RECIPES.values():
        built = "built" if images.archive(cluster.home, recipe).exists() else "not built"
        print(f"{recipe.name:<7} {recipe.reference:<24} {built:<10} {recipe.meaning}")


def _load(cluster: Cluster, words: Namespace) -> None:
    for what in words.what:
        print("\n".join(cluster.load(what)))


def _namespace(cluster: Cluster, words: Namespace) -> None:
    cluster.namespace(words.namespace, words.level)


def _fake_nodes(cluster: Cluster, words: Namespace) -> None:
    print("\n".join(cluster.fake_nodes(words.count, {**GPU_NODE, **dict(words.capacity)})))


def _logs(cluster: Cluster, words: Namespace) -> int:
    path = cluster.places.log / f"{words.program}.log"
    if not path.exists():
        raise ClusterError(
            f"{path} does not exist; `status` lists the programs of cluster '{cluster.name}'"
        )
    follow = ["--follow"] if words.follow else []
    return subprocess.run(["tail", f"--lines={words.lines}", *follow, path]).returncode


def _exec(cluster: Cluster, words: Namespace) -> int:
    return subprocess.run(cluster.node().command(*words.argv)).returncode


def _kubectl(cluster: Cluster, words: Namespace) -> int:
    cluster.node()
    builds.build(cluster.home, ["kubectl"], [], Clock())
    kubectl = programs.path(cluster.home, "kubectl")
    return subprocess.run([kubectl, f"--kubeconfig={cluster.kubeconfig}", *words.argv]).returncode


def _clean(cluster: Cluster, words: Namespace) -> None:
    paths = builds.everything(cluster.home) if words.all else builds.obsolete(cluster.home)
    builds.remove(cluster.home, paths)
    print("\n".join(f"removed {path}" for path in paths) or "nothing to remove")


class Clock:
    """Prints lines to stderr with the seconds since it was made."""

    def __init__(self) -> None:
        self._begun = time.monotonic()

    def __call__(self, line: str) -> None:
        print(f"{time.monotonic() - self._begun:6.1f} s  {line}", file=sys.stderr, flush=True)


COMMANDS: dict[str, Callable[[Cluster, Namespace], int | None]] = {
    "up": _up,
    "down": _down,
    "status": _status,
    "kubeconfig": _kubeconfig,
    "layers": _layers,
    "images": _images,
    "load": _load,
    "namespace": _namespace,
    "fake-nodes": _fake_nodes,
    "stop": lambda cluster, words: cluster.stop(words.program),
    "kill": lambda cluster, words: cluster.kill(words.program),
    "start": lambda cluster, words: cluster.start(words.program),
    "logs": _logs,
    "exec": _exec,
    "kubectl": _kubectl,
    "build": _build,
    "clean": _clean,
}
