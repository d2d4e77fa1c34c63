"""Keys and certificates of one cluster, by the command `openssl`: one authority for all, valid for
a year.

The authority and the webhook's certificate have RSA keys in PKCS#1 and the name
`training-operator-ca`: the operator's certificate rotator (open-policy-agent/cert-controller)
replaces anything else. The rest are P-256, made faster.
"""

import base64
import json
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.errors import ClusterError
from tests.cluster.network import Network

DAYS = "365"
SERVER, CLIENT = "serverAuth", "clientAuth"
PROXY = "front-proxy-client"
"""Name by which the API server presents itself to servers of further APIs, such as Kueue's."""


@dataclass(frozen=True)
class Certificate:
    """`subject` in openssl's form; `names` are entries of subjectAltName."""

    name: str
    subject: str
    usage: str
    names: tuple[str, ...] = ()
    pkcs1: bool = False


USERS = {
    "admin": "/O=system:masters/CN=admin",
    "kube-controller-manager": "/CN=system:kube-controller-manager",
    "kube-scheduler": "/CN=system:kube-scheduler",
    "kubelet": "/O=system:nodes/CN=system:node:node1",
    "kube-proxy": "/CN=system:kube-proxy",
    "coredns": "/CN=coredns",
    "training-operator": "/CN=training-operator",
    "jobset": "/CN=jobset",
    "trainer-controller-manager": "/CN=trainer-controller-manager",
    "kueue": "/O=system:masters/CN=kueue",
    "kwok": "/O=system:masters/CN=kwok",
}
"""Who talks to the API server, each with a kubeconfig of this name."""


def wanted(network: Network) -> list[Certificate]:
    """All but the authority."""
    api_names = [
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
    ]
    api_addresses = [network.api_service_ip, network.node_ip, "127.0.0.1"]
    node_names = ("DNS:node1", f"IP:{network.node_ip}")
    return [
        Certificate(
            "apiserver",
            "/CN=kube-apiserver",
            SERVER,
            (*_dns([*api_names, "localhost"]), *_ip(api_addresses)),
        ),
        Certificate("apiserver-kubelet", "/O=system:masters/CN=apiserver-kubelet", CLIENT),
        Certificate("apiserver-proxy", f"/CN={PROXY}", CLIENT),
        Certificate("kubelet-server", "/CN=node1", SERVER, node_names),
        Certificate("webhook", "/CN=training-operator", SERVER, ("IP:127.0.0.1",), pkcs1=True),
        *(Certificate(name, subject, CLIENT) for name, subject in USERS.items()),
    ]


def make(folder: Path, network: Network) -> None:
    """Writes ca.{crt,key}, sa.{pub,key}, {name}.{crt,key} into `folder`, which
    its owner alone may read.
    """
    folder.mkdir(mode=0o700)
    _openssl(folder, "genrsa", "-traditional", "-out", "ca.key", "2048")
    _write_request(folder, "ca", "/O=training-operator/CN=training-operator-ca", AUTHORITY)
    _openssl(
        folder,
        "req",
        "-x509",
        "-new",
        "-config",
        "ca.cnf",
        "-key",
        "ca.key",
        "-days",
        DAYS,
        "-out",
        "ca.crt",
    )
    with ThreadPoolExecutor() as pool:
        jobs = [pool.submit(_issue, folder, each) for each in wanted(network)]
        jobs.append(pool.submit(_make_service_account_keys, folder))
        for job in jobs:
            job.result()
    for path in [*folder.glob("*.cnf")]:
        path.unlink()


def kubeconfig(folder: Path, user: str, server: str) -> str:
    """With certificate and key inside, so that the file may be copied. JSON, which is YAML."""

    def data(name: str) -> str:
        return base64.b64encode((folder / name).read_bytes()).decode()

    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "cluster",
                "cluster": {"server": server, "certificate-authority-data": data("ca.crt")},
            }
        ],
        "users": [
            {
                "name": user,
                "user": {
                    "client-certificate-data": data(f"{user}.crt"),
                    "client-key-data": data(f"{user}.key"),
                },
            }
        ],
        "contexts": [{"name": "cluster", "context": {"cluster": "cluster", "user": user}}],
        "current-context": "cluster",
    }
    return json.dumps(document, indent=1) + "\n"


AUTHORITY = (
    "basicConstraints=critical,CA:TRUE",
    "keyUsage=critical,digitalSignature,keyEncipherment,keyCertSign",
    "subjectAltName=DNS:training-operator-ca",
)


def _issue(folder: Path, wanted: Certificate) -> None:
    extensions = [
        "keyUsage=critical,digitalSignature,keyEncipherment",
        f"extendedKeyUsage={wanted.usage}",
    ]
    if wanted.names:
        extensions.append("subjectAltName=" + ",".join(wanted.names))
    _write_request(folder, wanted.name, wanted.subject, extensions)
    key = f"{wanted.name}.key"
    if wanted.pkcs1:
        _openssl(folder, "genrsa", "-traditional", "-out", key, "2048")
    else:
        _openssl(folder, "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", key)
    authority = ("-CA", "ca.crt", "-CAkey", "ca.key")
    request = (
        "-config",
        f"{wanted.name}.cnf",
        "-key",
        key,
        "-days",
        DAYS,
        "-out",
        f"{wanted.name}.crt",
    )
    _openssl(folder, "req", "-x509", "-new", *authority, *request)


def _make_service_account_keys(folder: Path) -> None:
    _openssl(folder, "genrsa", "-traditional", "-out", "sa.key", "2048")
    _openssl(folder, "rsa", "-in", "sa.key", "-pubout", "-out", "sa.pub")


def _write_request(folder: Path, name: str, subject: str, extensions: Sequence[str]) -> None:
    """A whole configuration of our own: the system's would add CA:TRUE to every certificate."""
    fields = "\n".join(subject.strip("/").split("/"))
    text = (
        f"[req]\nprompt=no\ndistinguished_name=dn\nx509_extensions=ext\n[dn]\n{fields}\n[ext]\n"
        + "\n".join(extensions)
    )
    (folder / f"{name}.cnf").write_text(text + "\n")


def _dns(names: Sequence[str]) -> list[str]:
    return [f"DNS:{name}" for name in names]


def _ip(addresses: Sequence[str]) -> list[str]:
    return [f"IP:{address}" for address in addresses]


def _openssl(folder: Path, *arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        raise ClusterError(f"openssl {' '.join(arguments)}: {done.stderr.strip()}")
