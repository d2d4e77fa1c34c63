"""The dry run of a PyTorchJob shows whether Kueue would queue it. A policy of the API server stands for Kueue."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from server_stub.runtimes.kube.api import Api, ApiError, connect
from server_stub.runtimes.kube.names import QUEUE
from server_stub.runtimes.kube.pytorchjob import PYTORCHJOB
from tests.cluster import Cluster
from tests.cluster.waiting import until
from tests.kube.test_real_api import PATHS

NAMESPACE = "queues"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
SUSPENDS = "Object{spec: Object.spec{runPolicy: Object.spec.runPolicy{suspend: true}}}"

pytestmark = pytest.mark.cluster


@pytest.fixture
def api(control_plane: Cluster) -> Api:
    control_plane.namespace(NAMESPACE)
    return connect(control_plane.kubeconfig, None)


@contextmanager
def queueing_in(cluster: Cluster, namespace: str) -> Iterator[None]:
    """What Kueue's webhook does where its integration for PyTorchJobs is on, in this namespace alone."""
    paths = {f"{ADMISSION}/{kind}/{namespace}": made for kind, made in policy(namespace).items()}
    for path, made in paths.items():
        cluster.api.apply(path, made)
    api = connect(cluster.kubeconfig, None)
    for _ in until(60, pause_s=0.1):  # the API server acts by it a moment later
        if PYTORCHJOB.is_queued(api, namespace):
            break
    yield
    for path in paths:
        cluster.api.delete(path)


def policy(namespace: str) -> dict[str, dict[str, Any]]:
    here = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
    jobs = {
        "apiGroups": ["kubeflow.org"],
        "apiVersions": ["v1"],
        "resources": ["pytorchjobs"],
        "operations": ["CREATE"],
    }
    made = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": namespace}}
    rule = {
        "matchConstraints": {"resourceRules": [jobs]},
        "matchConditions": [{"name": "queued", "expression": f"'{QUEUE}' in object.metadata.?labels.orValue({{}})"}],
        "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": SUSPENDS}}],
        "reinvocationPolicy": "Never",
    }
    binding = {"policyName": namespace, "matchResources": here}
    return {
        "mutatingadmissionpolicies": {**made, "kind": "MutatingAdmissionPolicy", "spec": rule},
        "mutatingadmissionpolicybindings": {**made, "kind": "MutatingAdmissionPolicyBinding", "spec": binding},
    }


def test_nobody_queues_where_there_is_no_kueue_for_pytorch_jobs(api: Api) -> None:
    assert not PYTORCHJOB.is_queued(api, "jobs")


def test_a_kueue_that_takes_pytorch_jobs_is_found_by_what_it_does(api: Api, control_plane: Cluster) -> None:
    with queueing_in(control_plane, NAMESPACE):
        assert PYTORCHJOB.is_queued(api, NAMESPACE)
        assert not PYTORCHJOB.dry_run(api, NAMESPACE)["spec"]["runPolicy"]["suspend"]  # it names no queue


def test_nothing_is_made_of_it(api: Api, control_plane: Cluster) -> None:
    PYTORCHJOB.dry_run(api, NAMESPACE)
    assert control_plane.api.get(PATHS["PyTorchJob"].format(NAMESPACE))["items"] == []


def test_what_is_refused_is_an_error(api: Api) -> None:
    with pytest.raises(ApiError, match="nowhere"):
        PYTORCHJOB.dry_run(api, "nowhere")
