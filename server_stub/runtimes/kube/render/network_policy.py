"""Renders the NetworkPolicy of an attempt: who may connect to its pods, and where they may connect to. Pure.

It has an effect only with a network plugin that enforces policies, which a server can't find out.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from client_lib.errors import NotSupported
from client_lib.spec.job import JobSpec
from server_stub.runtimes.kube.catalogue import Peer
from server_stub.runtimes.kube.workload import ClusterOptions

SERVER_PODS = {"app.kubernetes.io/name": "client-lib-server"}


def policy(spec: JobSpec, pods: dict[str, str], cluster: ClusterOptions) -> dict[str, Any] | None:
    """The spec of a NetworkPolicy for the pods with these labels, which may reach each other; None: there is no rule.

    Raises NotSupported: the job is to have no internet and the address of the server is unknown; no job succeeds
    without the server.
    """
    network = cluster.catalogue.network
    directions: dict[str, Any] = {}
    if network.isolated:
        directions["ingress"] = _ingress(pods, cluster)
    if not (network.internet if spec.internet is None else spec.internet):
        directions["egress"] = _egress(pods, cluster)
    if not directions:
        return None
    types = [direction.capitalize() for direction in directions]
    return {"podSelector": {"matchLabels": pods}, "policyTypes": types, **directions}


def _ingress(pods: dict[str, str], cluster: ClusterOptions) -> list[dict[str, Any]]:
    servers = _servers(cluster) or []
    return [{"from": [_peer(Peer(pods=pods)), *servers, *map(_peer, cluster.catalogue.network.admit)]}]


def _egress(pods: dict[str, str], cluster: ClusterOptions) -> list[dict[str, Any]]:
    network, servers = cluster.catalogue.network, _servers(cluster)
    if servers is None:
        raise NotSupported(
            "internet=False would cut the job off from this server: a NetworkPolicy knows no name such as "
            f"{_host(cluster)}",
            hint="the operator of this server can say where it is: network.server in its catalogue",
        )
    rules = [_rule([Peer(pods=pods)]), _rule(network.dns, tcp=[53], udp=[53])]
    if servers:
        rules.append({"to": servers})
    return [*rules, *(_rule(rule.to, rule.tcp, rule.udp) for rule in network.allow)]


def _servers(cluster: ClusterOptions) -> list[dict[str, Any]] | None:
    """The peers that stand for this server. []: pods can't reach it. None: its URL has the name of a host outside the
    cluster, which no policy can select."""
    if cluster.catalogue.network.server:
        return [_peer(peer) for peer in cluster.catalogue.network.server]
    if cluster.settings.worker_server_url is None:
        return []
    host = _host(cluster)
    try:
        address = ip_address(host)
    except ValueError:  # the name of its Service: `NAME` in the namespace of the jobs, or `NAME.NAMESPACE.svc...`
        _, *inside = host.split(".")
        if inside and inside[1:2] != ["svc"]:
            return None
        namespaces = {"kubernetes.io/metadata.name": inside[0]} if inside else None
        return [_peer(Peer(pods=SERVER_PODS, namespaces=namespaces))]
    return [{"ipBlock": {"cidr": f"{address}/{address.max_prefixlen}"}}]


def _host(cluster: ClusterOptions) -> str:
    return urlsplit(cluster.settings.worker_server_url or "").hostname or ""


def _rule(to: Sequence[Peer], tcp: Sequence[int] = (), udp: Sequence[int] = ()) -> dict[str, Any]:
    ports = [{"protocol": "UDP", "port": port} for port in udp] + [{"protocol": "TCP", "port": port} for port in tcp]
    return {"to": [_peer(peer) for peer in to]} | ({"ports": ports} if ports else {})


def _peer(peer: Peer) -> dict[str, Any]:
    if peer.ip_block is not None:
        return {"ipBlock": {"cidr": peer.ip_block}}
    found: dict[str, Any] = {}
    if peer.namespaces is not None:
        found["namespaceSelector"] = {"matchLabels": peer.namespaces} if peer.namespaces else {}
    if peer.pods is not None:
        found["podSelector"] = {"matchLabels": peer.pods} if peer.pods else {}
    return found
