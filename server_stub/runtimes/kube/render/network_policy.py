"""The NetworkPolicy of the pods of an attempt: who may connect to them, and where they may connect
to. Pure.

A policy has an effect only with a network plugin that enforces policies. A server can't find out
whether the cluster has one.
"""

from ipaddress import ip_address
from urllib.parse import urlsplit

from client_lib.errors import NotSupported
from client_lib.spec.job import JobSpec
from server_stub.runtimes.kube.catalogue import Egress, Peer
from server_stub.runtimes.kube.options import ClusterOptions
from server_stub.runtimes.kube.workload import Object

SERVER_PODS = {"app.kubernetes.io/name": "client-lib-server"}


def rules(spec: JobSpec, pods: dict[str, str], cluster: ClusterOptions) -> Object | None:
    """The spec of a NetworkPolicy for the pods with these labels, which may reach each other; None:
    there is no rule.

    Raises NotSupported: the job is to have no internet and the address of the server is unknown; no
    job succeeds without the server.
    """
    network = cluster.catalogue.network
    servers = _servers(cluster)
    own = _peer(Peer(pods=pods))
    directions: Object = {}
    if network.isolated:
        directions["ingress"] = [{"from": [own, *(servers or []), *map(_peer, network.admit)]}]
    if not (network.internet if spec.internet is None else spec.internet):
        if servers is None:
            raise NotSupported(
                "internet=False would cut the job off from this server: a NetworkPolicy knows no "
                f"name such as {_host(cluster)}",
                hint="the operator of this server can say where it is: network.server in its "
                "catalogue",
            )
        found = [{"to": [own]}, _rule(Egress(to=network.dns, tcp=[53], udp=[53]))]
        if servers:
            found.append({"to": servers})
        directions["egress"] = [*found, *map(_rule, network.allow)]
    if not directions:
        return None
    types = [direction.capitalize() for direction in directions]
    return {"podSelector": {"matchLabels": pods}, "policyTypes": types, **directions}


def _servers(cluster: ClusterOptions) -> list[Object] | None:
    """The peers that stand for this server. []: pods can't reach it. None: its URL has the name of
    a host outside the cluster, which no policy can select."""
    if cluster.catalogue.network.server:
        return [_peer(peer) for peer in cluster.catalogue.network.server]
    if cluster.settings.worker_server_url is None:
        return []
    host = _host(cluster)
    try:
        address = ip_address(host)
    except ValueError:
        # the name of its Service: `NAME` in the namespace of the jobs, or `NAME.NAMESPACE.svc...`
        _, *inside = host.split(".")
        if inside and inside[1:2] != ["svc"]:
            return None
        namespaces = {"kubernetes.io/metadata.name": inside[0]} if inside else None
        return [_peer(Peer(pods=SERVER_PODS, namespaces=namespaces))]
    return [{"ipBlock": {"cidr": f"{address}/{address.max_prefixlen}"}}]


def _host(cluster: ClusterOptions) -> str:
    return urlsplit(cluster.settings.worker_server_url or "").hostname or ""


def _rule(rule: Egress) -> Object:
    ports = [{"protocol": "UDP", "port": port} for port in rule.udp]
    ports += [{"protocol": "TCP", "port": port} for port in rule.tcp]
    return {"to": [_peer(peer) for peer in rule.to]} | ({"ports": ports} if ports else {})


def _peer(peer: Peer) -> Object:
    if peer.ip_block is not None:
        return {"ipBlock": {"cidr": peer.ip_block}}
    selected = {"namespaceSelector": peer.namespaces, "podSelector": peer.pods}
    return {
        key: {"matchLabels": each} if each else {}
        for key, each in selected.items()
        if each is not None
    }
