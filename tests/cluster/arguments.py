"""The words of the command line, and their help. What they do stands in cli.py."""

import argparse
import os
import re
from collections.abc import Callable
from pathlib import Path

from tests.cluster import images, layers, objects
from tests.cluster.places import Home

NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
DESCRIPTION = (
    "A real Kubernetes on this machine for tests, without Docker, gone without a trace. Needs root."
)
EPILOG = """\
from nothing to a job:
  %(prog)s up node                     # minutes the first time, then seconds
  export KUBECONFIG=$(%(prog)s kubeconfig)
  kubectl -n jobs apply -f job.yaml    # the namespace `jobs` enforces Pod Security `restricted`
  %(prog)s down

exit codes: 0, 1 failed, 2 usage, 3 not up (status), 69 this machine lacks something
"""

Verb = argparse.ArgumentParser


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m tests.cluster",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    name = os.environ.get("CLUSTER_NAME", "default")
    made.add_argument(
        "--name", type=_name, default=name, help="which cluster (CLUSTER_NAME, else default)"
    )
    made.add_argument(
        "--home",
        type=_home,
        help="where all is kept (CLUSTER_HOME, else ~/.cache/kubernetes-test-cluster)",
    )
    verbs = made.add_subparsers(required=True, dest="command", metavar="COMMAND", title="commands")
    for verb, (help_, add) in VERBS.items():
        add(verbs.add_parser(verb, help=help_, description=help_))
    return made


def _layers(verb: Verb) -> None:
    verb.add_argument(
        "layers", nargs="*", type=_layer, metavar="LAYER", help=", ".join(layers.LAYERS)
    )
    verb.add_argument(
        "--image",
        action="append",
        choices=[name for name in images.RECIPES if name != "pause"],
        help="for the node; repeatable (default: python)",
    )


def _nothing(_verb: Verb) -> None:
    return None


def _down(verb: Verb) -> None:
    verb.add_argument(
        "--images",
        action="store_true",
        help="its store of images too, which the next `up` would use",
    )


def _status(verb: Verb) -> None:
    verb.add_argument("-o", "--output", choices=("text", "json"), default="text")


def _kubeconfig(verb: Verb) -> None:
    verb.add_argument("--text", action="store_true", help="its text instead of its path")


def _load(verb: Verb) -> None:
    names = ", ".join(images.RECIPES)
    verb.add_argument(
        "what", nargs="+", metavar="IMAGE", help=f"{names}, or the path of an OCI or Docker archive"
    )


def _namespace(verb: Verb) -> None:
    verb.add_argument("namespace", metavar="NAME")
    verb.add_argument("--level", choices=objects.LEVELS, default="restricted")


def _fake_nodes(verb: Verb) -> None:
    verb.add_argument("count", type=int, metavar="COUNT")
    help_ = "repeatable (default: cpu=96 memory=1Ti nvidia.com/gpu=8)"
    verb.add_argument(
        "--capacity", action="append", type=_pair, default=[], metavar="RESOURCE=N", help=help_
    )


def _program(verb: Verb) -> None:
    verb.add_argument(
        "program", choices=layers.ORDER, metavar="PROGRAM", help=", ".join(layers.ORDER)
    )


def _logs(verb: Verb) -> None:
    choices = (*layers.ORDER, "supervisor")
    verb.add_argument("program", choices=choices, metavar="PROGRAM", help=", ".join(choices))
    verb.add_argument("-n", "--lines", type=int, default=50)
    verb.add_argument("-f", "--follow", action="store_true")


def _exec(verb: Verb) -> None:
    verb.add_argument("argv", nargs="+", metavar="COMMAND", help="after `--`")


def _clean(verb: Verb) -> None:
    verb.add_argument("--all", action="store_true", help="the current ones too")


VERBS: dict[str, tuple[str, Callable[[Verb], None]]] = {
    "up": ("start layers (default: node); prints the line that points kubectl at them", _layers),
    "down": ("remove the cluster, whatever state it is in", _down),
    "status": ("what runs, and what is left over where nothing should", _status),
    "kubeconfig": ("path of the administrator's kubeconfig", _kubeconfig),
    "layers": ("what each layer is", _nothing),
    "images": ("the images that can be built", _nothing),
    "load": ("load images into the node", _load),
    "namespace": ("make a namespace with Pod Security enforced", _namespace),
    "fake-nodes": ("make nodes that KWOK pretends to be", _fake_nodes),
    "stop": ("end one program (SIGTERM)", _program),
    "kill": ("end one program (SIGKILL)", _program),
    "start": ("start a program again that has ended", _program),
    "logs": ("the log of one program", _logs),
    "exec": ("run a command inside the cluster: ctr, nft, ps", _exec),
    "kubectl": ("run kubectl as the administrator of the cluster", _exec),
    "build": ("build what layers need (default: all), start nothing", _layers),
    "clean": ("remove builds that no recipe of today makes", _clean),
}


def _layer(text: str) -> str:
    if text not in layers.LAYERS:
        raise argparse.ArgumentTypeError(f"no layer '{text}'; there are {', '.join(layers.LAYERS)}")
    return text


def _name(text: str) -> str:
    if not NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"'{text}' is no name: small letters, digits and '-', 32 at most"
        )
    return text


def _home(text: str) -> Home:
    return Home(Path(text).resolve())


def _pair(text: str) -> tuple[str, str]:
    resource, equals, amount = text.partition("=")
    if not (resource and equals and amount):
        raise argparse.ArgumentTypeError(f"'{text}' is no RESOURCE=N")
    return resource, amount
