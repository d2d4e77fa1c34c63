"""TrainJob of Kubeflow Trainer 2.2 or newer as a kind of workload; `manifest` has its pure part."""

from __future__ import annotations

import time
from functools import partial

from client_lib.spec.wire import Check
from server_stub.runtimes import checked
from server_stub.runtimes.kube.api import Api, ApiError, serves
from server_stub.runtimes.kube.api.objects_api import ObjectsApi
from server_stub.runtimes.kube.names import PROBE, QUEUE
from server_stub.runtimes.kube.trainjob import manifest
from server_stub.runtimes.kube.workload import Applied, WorkloadKind

INSTALL = "install Kubeflow Trainer 2.2 or newer with JobSet: https://github.com/kubeflow/trainer"
_NOTICED_TRIES, _NOTICED_S = 20, 0.25
"""Tries, and seconds between them, until the webhook knows a new TrainingRuntime."""


def _is_queued(api: Api, namespace: str) -> bool:
    """True if Kueue queues TrainJobs. Creates the TrainingRuntime of the probe, which jobs use, too."""
    tries = _NOTICED_TRIES
    while True:
        try:
            return bool(TRAINJOB.dry_run(api, namespace, {QUEUE: PROBE})["spec"].get("suspend"))
        except ApiError as error:
            tries -= 1
            if not tries or not manifest.lacks_runtime(error.message):
                raise
        ObjectsApi(api, namespace, TRAINJOB).create_base(manifest.plain_runtime(namespace))
        time.sleep(_NOTICED_S)


def _check(api: Api, namespace: str) -> Check:
    """Its webhooks accept a TrainJob, and a TrainingRuntime of this server is there."""
    kind, result = TRAINJOB, partial(checked, TRAINJOB.operator)
    if not serves(api, kind.api_version, kind.plural):
        return result(f"the cluster has no resource type {kind.name}", INSTALL)
    if not serves(api, "jobset.x-k8s.io/v1alpha2", "jobsets"):
        return result("the cluster has no resource type JobSet, which Trainer needs", INSTALL)
    try:
        kind.dry_run(api, namespace)
    except ApiError as error:
        fix = "start the server again, which makes it" if manifest.lacks_runtime(error.message) else INSTALL
        return result(f"it refuses a {kind.name}: {error.message}", fix)
    return result(f"it runs and takes a {kind.name} of this server's runtime")


TRAINJOB = WorkloadKind(
    name=manifest.NAME,
    group=manifest.GROUP,
    version=manifest.VERSION,
    plural=manifest.PLURAL,
    container=manifest.CONTAINER,
    operator="Kubeflow Trainer",
    kueue_framework="trainer.kubeflow.org/trainjob",
    conditions=manifest.CONDITIONS,
    manifest=manifest.manifest,
    probe=manifest.probe,
    worker_of=manifest.worker_of,
    is_queued=_is_queued,
    check=_check,
    parts=manifest.parts,
    name_max=manifest.NAME_MAX,
    applied=Applied("jobset.x-k8s.io", "v1alpha2", "jobsets", label="jobset.sigs.k8s.io/jobset-name"),
    bases={manifest.RUNTIME: manifest.RUNTIMES},
)
