"""Tries the `pod_template` of instance types on a cluster, by dry runs, which create nothing.
Blocks."""

from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from http import HTTPStatus
from pathlib import Path

from client_lib.errors import InvalidRequest, ServerError
from client_lib.spec.job import JobSpec, JobType
from client_lib.spec.request import CodeInPlace, Submitter
from server_stub.runtimes import Attempt
from server_stub.runtimes.kube.api import Api, ApiError, connect, default_namespace
from server_stub.runtimes.kube.catalogue import ClusterCatalogue, InstanceType
from server_stub.runtimes.kube.names import PROBE
from server_stub.runtimes.kube.options import ClusterOptions
from server_stub.runtimes.kube.render import Objects, render
from server_stub.runtimes.kube.workload import WorkloadKind, is_missing
from server_stub.settings import Settings

_DRY_RUN = {"dryRun": "All", "fieldValidation": "Strict"}
_REFUSED = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY)
Try = Callable[[Api, ClusterOptions, Objects], None]


def templated(catalogue: ClusterCatalogue) -> list[InstanceType]:
    return [each for each in catalogue.instance_types if each.pod_template]


def refused(api: Api, cluster: ClusterOptions) -> dict[str, str]:
    """Reasons why the cluster refuses jobs of a type with a `pod_template`, by its name.
    Raises ApiError: it could not be tried."""
    return dict(_refusals(api, cluster, _try_workload))


def check(catalogue: ClusterCatalogue, settings: Settings, pytorchjob: WorkloadKind) -> str:
    """Try the pods of all types with a `pod_template` as the user of the kubeconfig, who needs the
    right to create pods, and return the result as a sentence. Raises InvalidRequest: some are
    refused."""
    namespace = settings.kube_namespace or default_namespace(
        settings.kubeconfig, settings.kube_context
    )
    cluster = ClusterOptions(settings, pytorchjob, catalogue, namespace, launcher=b"")
    names = ", ".join(each.name for each in templated(catalogue))
    try:
        api = connect(settings.kubeconfig, settings.kube_context)
        wrong = dict(_refusals(api, cluster, _try_pod))
    except (ApiError, ServerError) as error:
        return f"the pod_template of {names} was not tried on a cluster: {error.message}"
    if wrong:
        lines = [f"the pod_template of {name}: {why}" for name, why in wrong.items()]
        raise InvalidRequest("\n".join(lines))
    return f"the cluster {api.host} takes the pod_template of {names} in namespace {namespace}"


def _refusals(api: Api, cluster: ClusterOptions, try_: Try) -> Iterator[tuple[str, str]]:
    for instance in templated(cluster.catalogue):
        objects = render(_sample(instance), cluster, worker_token="")
        try:
            try_(api, cluster, objects)
        except ApiError as error:
            if error.status not in _REFUSED and "violates PodSecurity" not in error.message:
                raise
            yield instance.name, error.message


def _sample(instance: InstanceType) -> Attempt:
    """A job of one worker of this type."""
    return Attempt(
        job_id="0" * 32,
        job_name=PROBE,
        number=1,
        spec=JobSpec(
            script="true", type=JobType.BINARY, instance_type=instance.name, base_image="none"
        ),
        code=CodeInPlace(),
        submitter=Submitter(),
        secret_values={},
        job_dir=Path("/"),
        snapshot=None,
        created_at=datetime.now(timezone.utc),
    )


def _try_workload(api: Api, cluster: ClusterOptions, objects: Objects) -> None:
    """Try what the server creates; the operator of the jobs would make its pods."""
    if (base := objects.base) is not None:
        path = cluster.kind.collection(cluster.namespace, cluster.kind.bases[base["kind"]])
        api.request("POST", path, base, _DRY_RUN)
    try:
        path = cluster.kind.collection(cluster.namespace)
        api.request("POST", path, objects.workload, _DRY_RUN)
    except ApiError as error:
        # a base that was tried is not there; the fields have been read by then
        if objects.base is None or not is_missing(objects.base, error.message):
            raise


def _try_pod(api: Api, cluster: ClusterOptions, objects: Objects) -> None:
    """Try the pod itself: the API server knows more of it than of a workload."""
    template = objects.workload["spec"]["pytorchReplicaSpecs"]["Master"]["template"]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**template["metadata"], "name": PROBE},
        "spec": {**template["spec"], "restartPolicy": "Never"},
    }
    api.request("POST", f"/api/v1/namespaces/{cluster.namespace}/pods", pod, _DRY_RUN)
