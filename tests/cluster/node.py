"""The machine that the cluster runs on: a tree of processes in namespaces of its own, and how to
talk to its PID 1.

For cluster.py. What runs in it is none of this module's business.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tests.cluster.errors import ClusterError, Unready
from tests.cluster.network import Network
from tests.cluster.places import Home, Places
from tests.cluster.waiting import until

SUPERVISOR = Path(__file__).with_name("supervisor.py")
CGROUPS = Path("/sys/fs/cgroup")
ANSWER_S = 30.0
BIRTH_S = 30.0
DEATH_S = 20.0
NAMESPACES = ("--mount", "--net", "--pid", "--uts", "--ipc")


@dataclass(frozen=True)
class Program:
    """One program as PID 1 sees it. `exit_code` is negative for a signal, None while it runs."""

    name: str
    argv: tuple[str, ...]
    env: dict[str, str]
    running: bool
    exit_code: int | None
    started_at: float


@dataclass(frozen=True)
class Node:
    """A process tree that is alive, or was. `pid` is meant together with
    `start_time`: numbers are used again.
    """

    pid: int
    start_time: int
    places: Places

    @staticmethod
    def of(places: Places) -> Node | None:
        """The one on record, alive or not; None: there never was one, or the
        machine was booted since.
        """
        try:
            record = json.loads(places.record.read_text())
        except FileNotFoundError:
            return None
        if record["boot_id"] != Path("/proc/sys/kernel/random/boot_id").read_text().strip():
            return None
        return Node(record["pid"], record["start_time"], places)

    def is_alive(self) -> bool:
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return False
        return int(fields[19]) == self.start_time and fields[0] != "Z"

    def answers(self) -> bool:
        """Alive and not about to end: a process that was killed lets go of its socket first."""
        try:
            self._ask({"do": "list"})
        except ClusterError:
            return False
        return self.is_alive()

    def programs(self) -> dict[str, Program]:
        return {
            name: Program(
                name,
                tuple(is_["argv"]),
                is_["env"],
                is_["pid"] is not None,
                is_["exit_code"],
                is_["started_at"],
            )
            for name, is_ in self._ask({"do": "list"})["programs"].items()
        }

    def start(self, name: str, argv: Sequence[str], env: dict[str, str]) -> None:
        """Starts it, or again if it runs with another command line; does
        nothing where it runs as asked.
        """
        known = self.programs().get(name)
        if known and known.running:
            if (known.argv, known.env) == (tuple(argv), env):
                return
            self.stop(name, grace_s=2)
        log = self.places.log / f"{name}.log"
        self._ask({"do": "start", "name": name, "argv": list(argv), "env": env, "log": str(log)})

    def signal(self, name: str, number: int) -> None:
        self._ask({"do": "signal", "name": name, "signal": number})

    def stop(self, name: str, grace_s: float = 10.0) -> None:
        """SIGTERM, and SIGKILL after `grace_s`. Returns when it has ended."""
        self.signal(name, signal.SIGTERM)
        for number in (signal.SIGKILL, None):
            for _ in until(grace_s):
                known = self.programs().get(name)
                if known is None or not known.running:
                    return
            if number:
                self.signal(name, number)
        raise ClusterError(f"{name} survived SIGKILL for {grace_s:g} s")

    def command(self, *argv: str) -> list[str]:
        """The same command, inside."""
        return ["nsenter", "--target", str(self.pid), *NAMESPACES, "--", *argv]

    def run(self, *argv: str, stdin: IO[bytes] | None = None) -> str:
        """Its output, run inside to its end. Raises ClusterError with its
        last words where it fails.
        """
        done = subprocess.run(
            self.command(*argv), stdin=stdin or subprocess.DEVNULL, capture_output=True
        )
        if done.returncode != 0:
            words = (done.stderr or done.stdout).decode(errors="replace").strip()
            raise ClusterError(
                f"{' '.join(argv)[:120]}: exit code {done.returncode}: {words[-1000:]}"
            )
        return done.stdout.decode(errors="replace")

    def kill(self) -> None:
        """Ends it with everything in it; returns when the last of its processes is
        gone. Alive or not: the same.
        """
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        try:
            if not self.is_alive():
                return
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            # The kernel ends PID 1 of a namespace only after all others in it.
            if not select.select([descriptor], [], [], DEATH_S)[0]:
                raise ClusterError(
                    f"process {self.pid} survived SIGKILL for {DEATH_S:g} s; is a mount of it "
                    "stuck?"
                )
        finally:
            os.close(descriptor)

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            answer = _exchange(self.places.run, request)
        except OSError as error:
            raise ClusterError(
                f"the cluster's PID 1 (process {self.pid}) does not answer: {error}"
            ) from error
        if "error" in answer:
            raise ClusterError(f"the cluster's PID 1 refuses {request['do']}: {answer['error']}")
        return answer


def create(home: Home, places: Places, network: Network) -> Node:
    """A new node with its network, nothing running in it. Whatever fails or is
    killed here, `down` finds it.
    """
    plan = {
        "home": str(home.root),
        "run": str(places.run),
        "record": str(places.record),
        "hostname": "node1",
    }
    path = places.run / "plan.json"
    path.write_text(json.dumps(plan))
    with (places.log / "supervisor.log").open("ab") as log:
        subprocess.run(
            [sys.executable, "-I", "-S", str(SUPERVISOR), str(path)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    node = Node.of(places)
    if node is None:
        raise Unready(f"namespaces could not be made: {_last_words(log_of=places)}")
    _await_birth(node)
    _connect(node, network)
    for folder in cgroup_folders(places.cgroup):
        folder.mkdir(exist_ok=True)
    return node


def cgroup_folders(name: str) -> list[Path]:
    """Where that cgroup lies: one folder for each hierarchy of cgroup v1, one in all for v2."""
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS / name]
    return [each / name for each in CGROUPS.iterdir() if each.is_dir() and not each.is_symlink()]


def _await_birth(node: Node) -> None:
    for _ in until(BIRTH_S):
        if not node.is_alive():
            break
        with contextlib.suppress(OSError):
            _exchange(node.places.run, {"do": "list"})
            return
    raise Unready(f"the cluster's PID 1 did not come up: {_last_words(log_of=node.places)}")


def _connect(node: Node, network: Network) -> None:
    """One pair of links; both ends end with the node's network namespace, and this
    machine's route with its end.
    """
    host = (
        "ip",
        "link",
        "add",
        network.link,
        "type",
        "veth",
        "peer",
        "name",
        "eth0",
        "netns",
        str(node.pid),
    )
    _ip(*host)
    node.run("ip", "link", "set", "lo", "up")
    node.run("ip", "address", "add", f"{network.node_ip}/24", "dev", "eth0")
    node.run("ip", "link", "set", "eth0", "up")
    node.run("ip", "route", "add", "default", "via", network.host_ip)
    node.run("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
    _ip("ip", "address", "add", f"{network.host_ip}/24", "dev", network.link)
    _ip("ip", "link", "set", network.link, "up")
    _ip("ip", "route", "add", network.all, "via", network.node_ip)


def _ip(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode != 0:
        raise ClusterError(f"{' '.join(argv)}: {done.stderr.strip()}")


def _exchange(folder: Path, request: dict[str, Any]) -> dict[str, Any]:
    descriptor = os.open(folder, os.O_PATH)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(ANSWER_S)
            connection.connect(f"/proc/self/fd/{descriptor}/control.sock")
            connection.sendall(json.dumps(request).encode() + b"\n")
            with connection.makefile("rb") as file:
                answer: dict[str, Any] = json.loads(file.readline() or b'{"error": "no answer"}')
                return answer
    finally:
        os.close(descriptor)


def _last_words(log_of: Places) -> str:
    return (log_of.log / "supervisor.log").read_text(errors="replace").strip()[
        -1000:
    ] or "no word of why"
