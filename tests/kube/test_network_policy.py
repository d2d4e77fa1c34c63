"""The pods of a job are reached by each other and the server, if the cluster has a
network plugin that enforces it.
"""

from dataclasses import replace
from typing import Any

import pytest

from server_stub.runtimes.kube.workload import Object
from tests.kube.cases import BUILDERS, SMALL, Builder, Case, case, cluster_with

SERVER = {"app.kubernetes.io/name": "client-lib-server"}
NAMESPACE = {"matchLabels": {"kubernetes.io/metadata.name": "ns"}}


def spec_of(made: Case) -> dict[str, Any]:
    policy = made.objects().own.get("policy")
    assert policy is not None
    found: dict[str, Any] = policy["spec"]
    return found


def labels_of(made: Case) -> list[dict[str, str]]:
    """Labels of the pods of each replica."""
    replicas: dict[str, Object] = made.objects().workload["spec"]["pytorchReplicaSpecs"]
    return [replica["template"]["metadata"]["labels"] for replica in replicas.values()]


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    return bool(selector.get("matchLabels", {}).items() <= labels.items())


def reached_by(made: Case, labels: dict[str, str]) -> bool:
    """True if a pod with these labels, in the namespace of the jobs, may
    connect to the pods of the job.
    """
    (rule,) = spec_of(made)["ingress"]
    return any(
        selects(peer["podSelector"], labels) for peer in rule["from"] if "podSelector" in peer
    )


@pytest.mark.parametrize("name", sorted(BUILDERS))
def test_the_pods_of_a_job_are_reached_by_each_other_and_by_the_pods_of_no_other_job(
    name: str,
) -> None:
    made = case(name)
    other = replace(made, attempt=replace(made.attempt, job_id="0b1c" * 8, owner="other"))
    assert "Ingress" in spec_of(made)["policyTypes"]
    for own, foreign in zip(labels_of(made), labels_of(other), strict=True):
        assert selects(spec_of(made)["podSelector"], own)
        assert not selects(spec_of(made)["podSelector"], foreign)
        assert reached_by(made, own)
        assert not reached_by(made, foreign)


@pytest.mark.parametrize(
    ("url", "sources"),
    [
        (
            "http://client-lib.ns.svc:8080",
            [{"namespaceSelector": NAMESPACE, "podSelector": {"matchLabels": SERVER}}],
        ),
        (
            "http://client-lib.ns.svc.cluster.local:8080",
            [{"namespaceSelector": NAMESPACE, "podSelector": {"matchLabels": SERVER}}],
        ),
        # in the namespace of the jobs
        ("http://client-lib:8080", [{"podSelector": {"matchLabels": SERVER}}]),
        ("http://10.1.2.3:8000", [{"ipBlock": {"cidr": "10.1.2.3/32"}}]),
        ("https://train.example.com", []),  # a policy knows no names
        (None, []),
    ],
)
def test_the_server_reaches_them_where_a_policy_can_say_who_it_is(
    url: str | None, sources: list[dict[str, Any]]
) -> None:
    made = Builder(cluster=cluster_with(worker_server_url=url)).build("x")
    (rule,) = spec_of(made)["ingress"]
    assert rule["from"][1:] == sources


def test_the_catalogue_admits_more_or_everybody() -> None:
    scraper = {
        "namespaceSelector": {"matchLabels": {"team": "ops"}},
        "podSelector": {"matchLabels": {"app": "prom"}},
    }
    more = Builder(
        SMALL + "network: {admit: [{pods: {app: prom}, namespaces: {team: ops}}]}"
    ).build("x")
    assert spec_of(more)["ingress"][0]["from"][-1] == scraper
    everybody = SMALL + "network: {isolated: false}"
    assert Builder(everybody).build("x").objects().own.get("policy") is None
    assert spec_of(Builder(everybody, spec={"internet": False}).build("x"))["policyTypes"] == [
        "Egress"
    ]


def test_a_job_without_internet_has_both_directions_in_one_policy() -> None:
    assert spec_of(Builder(spec={"internet": False}).build("x"))["policyTypes"] == [
        "Ingress",
        "Egress",
    ]
