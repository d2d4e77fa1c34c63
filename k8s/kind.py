"""`make kind`: from nothing to a trained model on a kind cluster. Each command is shown before it
runs.

    python3 k8s/kind.py check      # says what is missing, and changes nothing
    python3 k8s/kind.py up demo    # the cluster, images, operator, server; then the demo job

Standard library alone; `server` and `demo` run this project's own programs with the same
interpreter. Whatever is there already is kept, so that a second run goes on where the first one
stopped. `operator`, `server` and `demo` do the same on any cluster that `--kubectl` reaches.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OVERLAY = ROOT / "k8s" / "overlays" / "kind"
NAME = "client-lib"
IMAGES = {"localhost/client-lib-server:kind": "server", "localhost/client-lib-demo:kind": "demo"}
TOOLS = {
    "docker": "https://docs.docker.com/get-docker",
    "kind": "https://kind.sigs.k8s.io",
    "kubectl": "https://kubernetes.io/docs/tasks/tools",
}
ROLLOUT_S = 600  # the operator's image is pulled meanwhile


@dataclass(frozen=True)
class Target:
    """The cluster that is worked on, and where its server is reached."""

    kubectl: tuple[str, ...]
    endpoint: str


def main() -> None:
    options = _parse_arguments()
    target = Target(tuple(shlex.split(options.kubectl)), options.endpoint)
    for step in options.steps:
        for action in STEPS[step]:
            action(target)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="client_lib on a kind cluster, and a job on it.")
    parser.add_argument("steps", nargs="+", choices=STEPS, metavar="STEP", help=", ".join(STEPS))
    parser.add_argument(
        "--kubectl", default=f"kubectl --context kind-{NAME}", help="how to call it"
    )
    parser.add_argument(
        "--endpoint", default="http://127.0.0.1:30080", help="where the server is reached from here"
    )
    return parser.parse_args()


def check(_: Target) -> None:
    """Ends the program, before anything was done, where something is missing."""
    lacking = [
        f"{tool} is missing: {where}" for tool, where in TOOLS.items() if shutil.which(tool) is None
    ]
    if not lacking and subprocess.run(["docker", "info"], capture_output=True).returncode != 0:
        lacking = ["docker is there, but its daemon doesn't answer; `docker info` says why"]
    if lacking:
        sys.exit("\n".join(["make kind can't begin:", *(f"  {line}" for line in lacking)]))


def cluster(_: Target) -> None:
    there = subprocess.run(
        ["kind", "get", "clusters"], capture_output=True, text=True, check=True
    ).stdout.split()
    if NAME not in there:
        _run("kind", "create", "cluster", "--config", str(ROOT / "k8s" / "kind.yaml"))


def images(_: Target) -> None:
    for image, part in IMAGES.items():
        _run("docker", "build", "--tag", image, "--target", part, str(ROOT))
    _run("kind", "load", "docker-image", "--name", NAME, *IMAGES)


def operator(target: Target) -> None:
    # server-side: the definition of PyTorchJob is larger than the annotation that a plain apply
    # writes
    folder = ROOT / "k8s" / "third-party" / "training-operator"
    _run(*target.kubectl, "apply", "--server-side", "-k", str(folder))
    _rolled_out(target, "kubeflow", "training-operator")


def server(target: Target) -> None:
    _token()
    _run(*target.kubectl, "apply", "-k", str(OVERLAY))
    _rolled_out(target, NAME, "client-lib-server")


def demo(target: Target) -> None:
    """The job of `make demo`, on two pods of two processes each."""
    size = ("-N", "2", "--processes-per-worker", "2", "-i", "cpu.small", "-e", "OMP_NUM_THREADS=1")
    variables = {"CLIENT_LIB_ENDPOINT": target.endpoint, "CLIENT_LIB_TOKEN": _token()}
    script = str(ROOT / "examples" / "digits_ddp.py")
    _run(sys.executable, "-m", "client_lib", "submit", "-f", *size, script, variables=variables)
    _say(
        f"next: export CLIENT_LIB_ENDPOINT={target.endpoint} CLIENT_LIB_TOKEN=$(cat "
        f"{OVERLAY / 'token'})"
    )
    _say("      client-lib list; client-lib submit -f YOUR_SCRIPT; make kind-down")


def down(_: Target) -> None:
    _run("kind", "delete", "cluster", "--name", NAME)


STEPS: dict[str, tuple[Callable[[Target], None], ...]] = {
    "check": (check,),
    "up": (check, cluster, images, operator, server),
    "operator": (operator,),
    "server": (server,),
    "demo": (demo,),
    "down": (down,),
}


def _token() -> str:
    """Of the user `demo`; made once. Its digest is in users.toml, which the
    overlay hands to the server.
    """
    path, users = OVERLAY / "token", OVERLAY / "users.toml"
    if not (path.exists() and users.exists()):
        users.unlink(missing_ok=True)
        line = [sys.executable, "-m", "server_stub", "token", "demo", "--users-file", str(users)]
        made = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        path.touch(0o600)
        path.write_text(made)
    return path.read_text().strip()


def _rolled_out(target: Target, namespace: str, deployment: str) -> None:
    _run(
        *target.kubectl,
        "-n",
        namespace,
        "rollout",
        "status",
        f"deployment/{deployment}",
        f"--timeout={ROLLOUT_S}s",
    )


def _run(*command: str, variables: dict[str, str] | None = None) -> None:
    _say(f"== {shlex.join(command)}")
    ended = subprocess.run(command, cwd=ROOT, env=os.environ | (variables or {}), check=False)
    if ended.returncode != 0:
        sys.exit(f"{command[0]} failed with exit code {ended.returncode}")


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
