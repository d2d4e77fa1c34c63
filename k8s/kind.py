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
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import kind_needs as needs

ROOT = Path(__file__).resolve().parent.parent
OVERLAY = ROOT / "k8s" / "overlays" / "kind"
OPERATOR = ROOT / "k8s" / "third-party" / "training-operator"
CONFIG = ROOT / "k8s" / "kind.yaml"

BUILT = {"localhost/client-lib-server:kind": "server", "localhost/client-lib-demo:kind": "demo"}
"""Images in the manifests, and the parts of the Dockerfile that they are."""

BUILD_ARGUMENTS = ("PYTHON_IMAGE", "PIP_INDEX_URL", "TORCH_INDEX_URL", "CA_PEM")
"""Arguments of the Dockerfile that are taken from the environment."""

ROLLOUT_S = 600
"""Longest wait for a Deployment, whose images may be pulled meanwhile."""

CERTIFICATE_S = 50
"""Longest wait for the certificate of the operator."""
DEMO_S = 600
"""Longest time of the demo job."""


@dataclass
class Run:
    """One call of this program."""

    kubectl: tuple[str, ...]
    """The command that reaches the cluster."""
    port: int | None
    """The port of this machine for the server of a new cluster; None: the usual one."""
    address: str | None
    """The URL of the server of another cluster; None: it is a kind cluster of this machine."""
    images: dict[str, str] = field(default_factory=dict)
    """Image in the manifests -> its name on the node."""

    @property
    def endpoint(self) -> str:
        if self.address:
            return self.address
        port = self.port or needs.leading_port() or needs.NODE_PORT
        return f"http://127.0.0.1:{port}"


class Stopped(Exception):
    """A step failed; its text says how."""


def main() -> None:
    options = _parse_arguments()
    run = Run(tuple(shlex.split(options.kubectl)), options.port, options.endpoint)
    try:
        for step in options.steps:
            for action in STEPS[step]:
                action(run)
    except Stopped as stopped:
        sys.exit(str(stopped))
    except KeyboardInterrupt:
        _say("\nstopped: `make kind` goes on from here, `make kind-down` removes the cluster")
        sys.exit(130)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="client_lib on a kind cluster, and a job on it.")
    parser.add_argument("steps", nargs="+", choices=STEPS, metavar="STEP", help=", ".join(STEPS))
    parser.add_argument(
        "--kubectl", default=f"kubectl --context {needs.CONTEXT}", help="how to call it"
    )
    reached = parser.add_mutually_exclusive_group()
    reached.add_argument(
        "--port",
        type=_port,
        help=f"of this machine, for the server of a new cluster; {needs.NODE_PORT} by default",
    )
    reached.add_argument("--endpoint", help="where the server of another cluster is reached")
    return parser.parse_args()


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text[:6]) < 2**16:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: 1 to 65535")
    return int(text)


def check(run: Run) -> None:
    """Raises Stopped with a sentence for each need that this machine does not meet."""
    if sentences := needs.lacking(run.port):
        raise Stopped("\n".join(["make kind can't begin:", *(f"  {line}" for line in sentences)]))


def cluster(run: Run) -> None:
    if needs.is_there():
        return
    command = ["kind", "create", "cluster", "--config", "-"]
    if node_image := os.environ.get("KIND_NODE_IMAGE"):
        command += ["--image", node_image]
    config = CONFIG.read_text()
    if run.port:
        config = config.replace(f"hostPort: {needs.NODE_PORT}", f"hostPort: {run.port}")
    _run(*command, stdin=config)


def images(run: Run) -> None:
    """Build, pull and load the images of all pods. Each gets a tag made of its digest, so that
    the cluster replaces the pods of a Deployment whose image has changed.
    """
    for image, part in BUILT.items():
        _build(image, part)
    operator_image = _operator_image(run)
    _pull(operator_image)
    run.images = {
        image: _tagged(image, name)
        for image, name in {
            **{image: image.rpartition(":")[0] for image in BUILT},
            operator_image: "localhost/client-lib-operator",
        }.items()
    }
    _run("kind", "load", "docker-image", "--name", needs.CLUSTER, *run.images.values())
    # any image with sh and getent will do for the init container of a worker; this one changes
    # seldom, and the operator is restarted when it does
    run.images[_init_image(run)] = run.images["localhost/client-lib-demo:kind"]


def operator(run: Run) -> None:
    # server-side: the definition of PyTorchJob is larger than the annotation that a plain apply
    # writes
    _apply(run, OPERATOR, "--server-side")
    _show_certificate(run)
    _rolled_out(run, "kubeflow", "training-operator")


def server(run: Run) -> None:
    _token()
    _apply(run, OVERLAY)
    _rolled_out(run, needs.CLUSTER, "client-lib-server")


def demo(run: Run) -> None:
    """The job of `make demo`, on two pods of two processes each."""
    size = ("-N", "2", "--processes-per-worker", "2", "-i", "cpu.small", "-e", "OMP_NUM_THREADS=1")
    submit = ("submit", "-f", *size, str(ROOT / "examples" / "digits_ddp.py"))
    try:
        _client_lib(run, *submit, limit_s=DEMO_S)
    except subprocess.TimeoutExpired:
        _client_lib(run, "explain")
        raise Stopped(
            f"the demo has not ended after {DEMO_S // 60} minutes; it goes on until `client-lib "
            "cancel`"
        ) from None
    _say(
        f"next: export CLIENT_LIB_ENDPOINT={run.endpoint} CLIENT_LIB_TOKEN=$(cat "
        f"{OVERLAY / 'token'})"
    )
    _say("      client-lib list; client-lib submit -f YOUR_SCRIPT; make kind-down")


def down(_: Run) -> None:
    _run("kind", "delete", "cluster", "--name", needs.CLUSTER)
    _say("docker keeps the images: docker image rm $(docker image ls -q 'localhost/client-lib-*')")


STEPS: dict[str, tuple[Callable[[Run], None], ...]] = {
    "check": (check,),
    "up": (check, cluster, images, operator, server),
    "cluster": (cluster,),
    "operator": (operator,),
    "server": (server,),
    "demo": (demo,),
    "down": (down,),
}


def _build(image: str, part: str) -> None:
    arguments = [f"--build-arg={name}" for name in BUILD_ARGUMENTS if name in os.environ]
    command = ["docker", "build", "--tag", image, "--target", part, *arguments]
    # without a record of its making: an image with one is a list, which kind does not load
    _run(*command, "--provenance=false", str(ROOT), variables={"DOCKER_BUILDKIT": "1"})


def _pull(image: str) -> None:
    if not needs.ask("docker", "image", "inspect", image).ok:
        _run("docker", "pull", image)


def _operator_image(run: Run) -> str:
    return _found(r"\bimage: (\S+/training-operator:\S+)", _manifests(run, OPERATOR))


def _init_image(run: Run) -> str:
    return _found(r"--pytorch-init-container-image=(\S+)", _manifests(run, OPERATOR))


def _found(pattern: str, text: str) -> str:
    (found,) = re.findall(pattern, text)
    return str(found)


def _tagged(image: str, name: str) -> str:
    """Give the image a tag that is made of its digest."""
    digest = _output("docker", "image", "inspect", "--format", "{{.Id}}", image).strip()
    tagged = f"{name}:{digest.removeprefix('sha256:')[:12]}"
    _run("docker", "tag", image, tagged)
    return tagged


def _manifests(run: Run, folder: Path) -> str:
    return _output(*run.kubectl, "kustomize", str(folder))


def _apply(run: Run, folder: Path, *options: str) -> None:
    """Apply a folder's manifests with the images that were loaded."""
    text = _manifests(run, folder)
    for written, loaded in run.images.items():
        text = text.replace(written, loaded)
    _run(*run.kubectl, "apply", *options, "-f", "-", stdin=text)


def _show_certificate(run: Run) -> None:
    """The operator writes its certificate into a Secret that its own pod has mounted. The kubelet
    looks at a mounted Secret once in a minute or more, but at once when the pod changes. A failure
    here only makes the first start 95 s longer.
    """
    kubeflow = [*run.kubectl, "-n", "kubeflow"]
    filled = r"--for=jsonpath={.data.tls\.crt}"
    secret = "secret/training-operator-webhook-cert"
    needs.ask(*kubeflow, "wait", filled, secret, f"--timeout={CERTIFICATE_S}s")
    label = "control-plane=kubeflow-training-operator"
    changed = "client-lib.io/certificate=made"
    needs.ask(*kubeflow, "annotate", "pods", "-l", label, "--overwrite", changed)


def _token() -> str:
    """The token of the user `demo`, made at the first call. Its digest is in users.toml, which the
    overlay gives to the server.
    """
    path = OVERLAY / "token"
    users = OVERLAY / "users.toml"
    if not (path.exists() and path.stat().st_size and users.exists()):
        users.unlink(missing_ok=True)
        made = _output(
            sys.executable, "-m", "server_stub", "token", "demo", "--users-file", str(users)
        )
        path.touch(0o600)
        path.write_text(made)
    return path.read_text().strip()


def _rolled_out(run: Run, namespace: str, deployment: str) -> None:
    name = f"deployment/{deployment}"
    _run(*run.kubectl, "-n", namespace, "rollout", "status", name, f"--timeout={ROLLOUT_S}s")


def _client_lib(run: Run, *words: str, limit_s: float | None = None) -> None:
    """Raises as `_run`."""
    variables = {
        "CLIENT_LIB_ENDPOINT": run.endpoint,
        "CLIENT_LIB_TOKEN": _token(),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    }
    _run(sys.executable, "-m", "client_lib", *words, variables=variables, limit_s=limit_s)


def _run(
    *command: str,
    stdin: str | None = None,
    variables: dict[str, str] | None = None,
    limit_s: float | None = None,
) -> None:
    """Show the command and run it, with its output on this terminal.

    Raises Stopped where it fails, subprocess.TimeoutExpired after `limit_s`.
    """
    _say(f"== {shlex.join(command)}")
    with _naming(command[0]):
        ended = subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | (variables or {}),
            input=stdin,
            text=True,
            timeout=limit_s,
            check=False,
        )
    if ended.returncode != 0:
        raise Stopped(f"{command[0]} failed with exit code {ended.returncode}")


def _output(*command: str) -> str:
    """Raises Stopped with what the command said, where it fails."""
    with _naming(command[0]):
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise Stopped(
            f"{ended.stderr}{shlex.join(command)} failed with exit code {ended.returncode}"
        )
    return ended.stdout


@contextmanager
def _naming(program: str) -> Iterator[None]:
    """Raise Stopped where the program is missing."""
    try:
        yield
    except FileNotFoundError as error:
        raise Stopped(needs.missing(program)) from error


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
