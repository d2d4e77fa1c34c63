"""The addresses of one cluster. Pure, but for `free_network`, which looks at the routes of this
machine.

A cluster has a network namespace of its own, joined to this machine by one pair of virtual links.
So no port of this machine is ever taken, and every address of the cluster (node, pods, services) is
reached from here through one route.
"""

from __future__ import annotations

import ipaddress
import json
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.errors import ClusterError

NUMBERS = range(100, 250)


@dataclass(frozen=True)
class Network:
    """10.<number>.0.0/16, cut in four."""

    number: int

    @staticmethod
    def recorded(path: Path) -> Network | None:
        """Read what `record` wrote; None: there is no such file, or its writer was killed
        before any text was in it.
        """
        try:
            return Network(json.loads(path.read_text())["number"])
        except (FileNotFoundError, json.JSONDecodeError):
            return None

    def record(self, path: Path) -> None:
        path.write_text(json.dumps({"number": self.number}))

    @property
    def all(self) -> str:
        return f"10.{self.number}.0.0/16"

    @property
    def link(self) -> str:
        """The end of the pair on this machine; the other end is `eth0` of the cluster."""
        return f"cluster{self.number}"

    @property
    def host_ip(self) -> str:
        """This machine, seen from pods."""
        return f"10.{self.number}.0.1"

    @property
    def node_ip(self) -> str:
        """The node: API server, DNS, kubelet."""
        return f"10.{self.number}.0.2"

    @property
    def pods(self) -> str:
        return f"10.{self.number}.64.0/18"

    @property
    def services(self) -> str:
        return f"10.{self.number}.128.0/18"

    @property
    def api_service_ip(self) -> str:
        """ClusterIP of the Service `kubernetes`: always the first of the range."""
        return f"10.{self.number}.128.1"

    @property
    def fake_pods(self) -> str:
        """Addresses that KWOK gives to pods that don't exist."""
        return f"10.{self.number}.192.0/18"

    @property
    def server(self) -> str:
        return f"https://{self.node_ip}:6443"


def free_number(taken: Iterable[str]) -> int:
    """The first number whose /16 overlaps none of the networks `taken` (a
    default route overlaps nothing).
    """
    used = [ipaddress.ip_network(each, strict=False) for each in taken]
    for number in NUMBERS:
        wanted = ipaddress.ip_network(Network(number).all)
        if not any(each.version == 4 and each.prefixlen and each.overlaps(wanted) for each in used):
            return number
    raise ClusterError(
        f"no network 10.{NUMBERS[0]}.0.0/16 to 10.{NUMBERS[-1]}.0.0/16 is free on this machine; "
        "see `ip route`"
    )


def free_network(records: Iterable[Path]) -> Network:
    """A network to which this machine has no route, and which no cluster has on record.

    The link and the route of a cluster that was killed are gone before `down` looks for them. If
    another cluster had taken its number by then, `down` would wait for that one's link and delete
    it.
    """
    routes = json.loads(
        subprocess.check_output(["ip", "-json", "-4", "route", "show", "table", "all"]) or "[]"
    )
    taken = [route["dst"] for route in routes if route["dst"] != "default"]
    return Network(
        free_number([*taken, *(known.all for known in map(Network.recorded, records) if known)])
    )
