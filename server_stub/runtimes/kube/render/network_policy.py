"""Renders `internet=False` as a NetworkPolicy that admits DNS, the other workers and the server. Pure.

It has an effect only with a network plugin that enforces policies, which a server can't find out.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from client_lib.errors import NotSupported
from client_lib.spec.job import JobSpec
from server_stub.runtimes.kube.catalogue import ClusterCatalogue, Egress, Peer
from server_stub.runtimes.kube.options import ClusterSettings

SERVER_PODS = {"app.kubernetes.io/name": "client-lib-server"}


def wanted(spec: JobSpec, catalogue: ClusterCatalogue) -> bool:
    """True if the job has no internet access."""
    return not (catalogue.network.internet if spec.internet is None else spec.internet)


def egress(pods: dict[str, str], cluster: ClusterSettings, catalogue: ClusterCatalogue) -> dict[str, Any]:
    """The spec of a NetworkPolicy for the pods with these labels, which may reach each other.

    Raises NotSupported: the address of the server is unknown, and no job succeeds without the server.
    """
    network = catalogue.network
    rules = [
        {"to": [{"podSelector": {"matchLabels": pods}}]},
        {
            "to": [_peer(peer) for peer in network.dns],
            "ports": [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}],
        },
    ]
    if servers := _servers(cluster, network.server):
        rules.append({"to": servers})
    return {
        "podSelector": {"matchLabels": pods},
        "policyTypes": ["Egress"],
        "egress": [*rules, *(_rule(rule) for rule in network.allow)],
    }


def _servers(cluster: ClusterSettings, given: Sequence[Peer]) -> list[dict[str, Any]]:
    if given:
        return [_peer(peer) for peer in given]
    if cluster.server_url is None:
        return []
    host = urlsplit(cluster.server_url).hostname or ""
    try:
        address = ip_address(host)
    except ValueError:
        return [_pods_of_service(host)]
    return [{"ipBlock": {"cidr": f"{address}/{address.max_prefixlen}"}}]


def _pods_of_service(host: str) -> dict[str, Any]:
    if "." in host and ".svc." not in f"{host}.":
        raise NotSupported(
            f"internet=False would cut the job off from this server: a NetworkPolicy knows no name such as {host}",
            hint="the operator of this server can say where it is: network.server in its catalogue",
        )
    return {"namespaceSelector": {}, "podSelector": {"matchLabels": SERVER_PODS}}


def _rule(rule: Egress) -> dict[str, Any]:
    ports = [{"protocol": "TCP", "port": port} for port in rule.tcp]
    ports += [{"protocol": "UDP", "port": port} for port in rule.udp]
    return {"to": [_peer(peer) for peer in rule.to]} | ({"ports": ports} if ports else {})


def _peer(peer: Peer) -> dict[str, Any]:
    if peer.ip_block is not None:
        return {"ipBlock": {"cidr": peer.ip_block}}
    found: dict[str, Any] = {}
    if peer.namespaces is not None:
        found["namespaceSelector"] = {"matchLabels": peer.namespaces} if peer.namespaces else {}
    if peer.pods is not None:
        found["podSelector"] = {"matchLabels": peer.pods} if peer.pods else {}
    return found
