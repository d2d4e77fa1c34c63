"""Needs of `make kind`: judges a machine by the answers of docker, kind and kubectl.

Each function that judges returns the sentences to show; none means that all is well. Nothing is
changed.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

CLUSTER = "client-lib"
NODE = f"{CLUSTER}-control-plane"
CONTEXT = f"kind-{CLUSTER}"
NODE_PORT = 30080
"""The port of the server on the node, as in k8s/kind.yaml and the overlay."""

TOOLS = {
    "docker": "https://docs.docker.com/get-docker",
    "kind": "https://kind.sigs.k8s.io",
    "kubectl": "https://kubernetes.io/docs/tasks/tools",
}
KIND_AT_LEAST = (0, 33)
"""The first kind whose nodes run the image of k8s/kind.yaml."""

CPUS = 2
MEMORY_GIB = 4
_MEMORY_MIN = 3.6 * 2**30
"""A machine "of 4 GiB" shows less: its kernel keeps a part."""

DISK_GB = 10
"""Images in docker, once more as kind's archive, and unpacked on the node."""

ANSWER_S = 60


@dataclass(frozen=True)
class Answer:
    """The output of a program. `ok`: it ended with 0."""

    ok: bool
    stdout: str = ""
    stderr: str = ""


@dataclass(frozen=True)
class Daemon:
    """The machine that the daemon of docker runs on."""

    cpus: int
    memory: float
    """Bytes."""
    cgroup_version: str
    folder: Path
    """Where docker keeps images; in a virtual machine it is not seen from here."""


def ask(*command: str) -> Answer:
    """The answer of a program; one that is missing, or runs for more than a minute, has failed."""
    try:
        ended = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=ANSWER_S,
        )
    except subprocess.TimeoutExpired:
        return Answer(False, stderr=f"{command[0]} did not answer for {ANSWER_S} s")
    except FileNotFoundError:
        return Answer(False, stderr=missing(command[0]))
    return Answer(ended.returncode == 0, ended.stdout, ended.stderr)


def missing(program: str) -> str:
    return ": ".join([f"{program} is missing", *filter(None, [TOOLS.get(program)])])


def lacking(port: int | None) -> list[str]:
    """All that keeps `make kind` from its end. The first kind of trouble that is found hides
    the later ones, which may follow from it.
    """
    return lacking_tools() or lacking_docker() or lacking_versions() or lacking_place(port)


def lacking_tools() -> list[str]:
    return [missing(tool) for tool in TOOLS if shutil.which(tool) is None]


def lacking_docker() -> list[str]:
    """Docker, its daemon, and the size of the machine that the daemon runs on."""
    if "podman" in ask("docker", "--version").stdout.lower():
        return [
            "`docker` is podman here, which this has not been tried with: put Docker's own command "
            f"in front of it in PATH ({TOOLS['docker']})"
        ]
    info = ask("docker", "info", "--format", "{{json .}}")
    daemon = parse_daemon(info.stdout) if info.ok else None
    if daemon is None:
        return ["docker is there, but its daemon doesn't answer; `docker info` says why"]
    return [*too_small(daemon), *old_cgroups(daemon), *full_disks(daemon)]


def parse_daemon(text: str) -> Daemon | None:
    """Parse the output of `docker info`; None: the output names no daemon. A fact that the output
    lacks is taken for sufficient.
    """
    try:
        found = json.loads(text)
    except ValueError:
        found = {}
    facts = found if isinstance(found, dict) else {}
    if facts.get("ServerErrors"):
        return None
    return Daemon(
        cpus=facts.get("NCPU", CPUS),
        memory=facts.get("MemTotal", _MEMORY_MIN),
        cgroup_version=facts.get("CgroupVersion", ""),
        folder=Path(facts.get("DockerRootDir") or "/nowhere"),
    )


def too_small(daemon: Daemon) -> list[str]:
    if daemon.cpus >= CPUS and daemon.memory >= _MEMORY_MIN:
        return []
    return [
        f"docker has {daemon.cpus} CPUs and {daemon.memory / 2**30:.1f} GiB of memory; "
        f"{CPUS} CPUs and {MEMORY_GIB} GiB are needed (Docker Desktop: Settings, "
        f"Resources; Colima: `colima start --cpu {CPUS} --memory {MEMORY_GIB}`)"
    ]


def old_cgroups(daemon: Daemon) -> list[str]:
    if daemon.cgroup_version != "1":
        return []
    return [
        "docker uses control groups of version 1, on which this Kubernetes does not start: boot "
        "the machine with the kernel's option systemd.unified_cgroup_hierarchy=1"
    ]


def full_disks(daemon: Daemon) -> list[str]:
    """Looks at the folder of docker and the folder of temporary files, where kind writes images.
    The disk of a virtual machine is not seen from here.
    """
    wanted = (daemon.folder, Path(tempfile.gettempdir()))
    folders = [folder for folder in wanted if folder.is_dir()]
    free = {folder: shutil.disk_usage(folder).free / 1e9 for folder in folders}
    return [
        f"{folder} has {gigabytes:.1f} GB of free disk; {DISK_GB} GB are needed (`docker system "
        "prune` removes images that nothing uses)"
        for folder, gigabytes in free.items()
        if gigabytes < DISK_GB
    ]


def lacking_versions() -> list[str]:
    sentences = []
    if not ask("docker", "buildx", "version").ok:
        sentences.append(
            "this docker has no buildx, without which it can't build the images: install the "
            "package docker-buildx-plugin (Debian and Ubuntu's own: docker-buildx)"
        )
    version = ask("kind", "version").stdout.strip()
    found = re.search(r"v(\d+)\.(\d+)", version)
    if found and (int(found[1]), int(found[2])) < KIND_AT_LEAST:
        needed = ".".join(map(str, KIND_AT_LEAST))
        sentences.append(f"kind is too old ({version}): {needed} is needed: {TOOLS['kind']}")
    return sentences


def lacking_place(port: int | None) -> list[str]:
    """The cluster, where it is there already, else a free port for it."""
    if is_there():
        return unusable(port)
    return taken(NODE_PORT if port is None else port)


def is_there() -> bool:
    return CLUSTER in ask("kind", "get", "clusters").stdout.split()


def unusable(port: int | None) -> list[str]:
    """Why the cluster of this name can't be used."""
    state = ask("docker", "inspect", "--format", "{{.State.Running}}", NODE)
    if state.ok and state.stdout.strip() == "false":
        return [f"the cluster {CLUSTER} is stopped: `docker start {NODE}`, then once more"]
    led_to = leading_port()
    if led_to is None:
        return [
            f"kind has a cluster {CLUSTER} that `make kind` has not made: its port {NODE_PORT} "
            "leads nowhere. `make kind-down` removes it with all that is in it"
        ]
    if port not in (None, led_to):
        return [
            f"the cluster {CLUSTER} is there, and its server is at port {led_to}, not {port}: "
            "leave KIND_PORT out, or remove the cluster with `make kind-down`"
        ]
    ready = ask("kubectl", "--context", CONTEXT, "get", "--raw", "/readyz")
    if ready.ok:
        return []
    if f'context "{CONTEXT}" does not exist' in ready.stderr:
        return [
            f"the cluster {CLUSTER} is there, but kubectl does not know it: `kind export "
            f"kubeconfig --name {CLUSTER}`, then once more"
        ]
    return [
        f"the cluster {CLUSTER} is there, but does not answer. If it was started a moment ago, "
        "wait a minute; if it was left half made, `make kind-down` removes it"
    ]


def leading_port() -> int | None:
    """The port of this machine that leads to the server's port on the node."""
    answer = ask("docker", "port", NODE, f"{NODE_PORT}/tcp")
    found = re.search(r":(\d+)\s*$", answer.stdout.partition("\n")[0])
    return int(found[1]) if answer.ok and found else None


def taken(port: int) -> list[str]:
    with socket.socket() as probe:
        # as docker's own proxy does; else a port whose last connection has just ended seems taken
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except PermissionError:
            return []  # docker's proxy may have the right
        except (OSError, OverflowError) as error:
            return [
                f"port {port} of 127.0.0.1 can't be used ({error}): choose another one, as in "
                "`make kind KIND_PORT=30081`"
            ]
    return []
