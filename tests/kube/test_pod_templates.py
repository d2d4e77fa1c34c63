"""`pod_template` of instance types, tried by dry runs of a real API server."""

from dataclasses import replace
from pathlib import Path

import pytest

from client_lib.errors import InvalidRequest
from server_stub.runtimes.kube import pod_templates
from server_stub.runtimes.kube.api import connect
from server_stub.runtimes.kube.catalogue.file import read
from server_stub.runtimes.kube.runtime import check_pod_templates
from server_stub.settings import Settings
from tests.cluster import Cluster
from tests.kube.cases import CLUSTER

TYPES = """
instance_types:
  - {name: plain, cpu: 1, memory_gib: 1}
  - name: good
    cpu: 1
    memory_gib: 1
    pod_template:
      metadata: {labels: {cost-centre: a}}
      spec:
        containers:
          - {name: worker, volumeMounts: [{name: more, mountPath: /more}]}
        volumes: [{name: more, emptyDir: {}}]
  - {name: typo, cpu: 1, memory_gib: 1, pod_template: {spec: {hostnetwork: true}}}
  - name: unmounted
    cpu: 1
    memory_gib: 1
    pod_template:
      spec: {containers: [{name: worker, volumeMounts: [{name: nothing, mountPath: /x}]}]}
  - {name: unsafe, cpu: 1, memory_gib: 1, pod_template: {spec: {hostNetwork: true}}}
"""


@pytest.mark.cluster
def test_the_cluster_says_which_template_it_refuses(control_plane: Cluster) -> None:
    """The server tries its workloads; a person may make pods, of which the API server knows
    more."""
    control_plane.namespace("templates", "restricted")
    catalogue = read(TYPES)
    options = replace(CLUSTER, catalogue=catalogue, namespace="templates")
    api = connect(control_plane.kubeconfig, None)
    refused = pod_templates.refused(api, options)
    assert refused.keys() == {"typo"}
    assert (
        'unknown field "spec.pytorchReplicaSpecs.Master.template.spec.hostnetwork"'
        in (refused["typo"])
    )
    settings = Settings(kubeconfig=control_plane.kubeconfig, kube_namespace="templates")
    with pytest.raises(InvalidRequest) as caught:
        check_pod_templates(catalogue, settings)
    typo, unmounted, unsafe = caught.value.message.splitlines()
    assert typo.startswith("the pod_template of typo: ")
    assert 'volumeMounts[7].name: Not found: "nothing"' in unmounted
    assert 'violates PodSecurity "restricted' in unsafe
    good = catalogue.model_copy(update={"instance_types": catalogue.instance_types[:2]})
    assert "takes the pod_template of good in namespace templates" in check_pod_templates(
        good, settings
    )


def test_a_catalogue_is_valid_where_no_cluster_answers(tmp_path: Path) -> None:
    missing = Settings(kubeconfig=tmp_path / "none", kube_namespace="jobs")
    said = check_pod_templates(read(TYPES), missing)
    assert said.startswith("the pod_template of good, typo, unmounted, unsafe was not tried on a ")
