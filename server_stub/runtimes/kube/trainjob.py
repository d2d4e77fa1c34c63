"""TrainJob of Kubeflow Trainer 2.2 or newer as a kind of workload, and the TrainingRuntime below
it.

A TrainJob patches the pod template of a TrainingRuntime, and can't patch all of its fields: the
others, such as the PriorityClass, are fields of the runtime. A runtime is named by the hash of its
content, and jobs with the same content share it.

Sources: Kubeflow Trainer v2.3.0, pkg/apis/trainer/v1alpha1/trainjob_types.go and
pkg/runtime/core/trainingruntime.go; JobSet v0.12.0.
"""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from client_lib.spec.states import Reason
from client_lib.spec.wire import Check
from server_stub.runtimes.checks import checked
from server_stub.runtimes.kube.api import Api, ApiError, serves
from server_stub.runtimes.kube.names import MANAGED_BY, OURS, PROBE, QUEUE
from server_stub.runtimes.kube.workload import (
    SCHEDULERS,
    Applied,
    Object,
    WorkloadKind,
    WorkloadPlan,
    is_missing,
    rank_variables,
)
from server_stub.runtimes.verdict import elastic_bounds

INSTALL = "install Kubeflow Trainer 2.2 or newer with JobSet: https://github.com/kubeflow/trainer"
RUNTIME = "TrainingRuntime"
CONTAINER = "node"  # the trainer's webhook refuses a runtime without a container of this name
REPLICATED_JOB = "node"
REPLICATED_JOB_LABEL = "jobset.sigs.k8s.io/replicatedjob-name"
INDEX = "batch.kubernetes.io/job-completion-index"
VOLCANO_QUEUE = "scheduling.volcano.sh/queue-name"
MANAGER = "client-lib.io/server"
"""Key of the patches, each of which has one."""
REPLACED = 1_000_000
"""Number of lost pods of an elastic job that are replaced; the server
ends the attempt long before.
"""
_PATCHED = {
    "volumes",
    "securityContext",
    "terminationGracePeriodSeconds",
    "nodeSelector",
    "tolerations",
    "affinity",
    "serviceAccountName",
    "imagePullSecrets",
}
"""Fields of a pod that a TrainJob may set."""
_BY_TRAINER = {
    "name",
    "image",
    "command",
    "env",
    "envFrom",
    "resources",
    "securityContext",
    "volumeMounts",
}
"""Fields of the container that a TrainJob may set, by its trainer or a patch."""


class TrainJob(WorkloadKind):
    name = "TrainJob"
    group = "trainer.kubeflow.org"
    version = "v1alpha1"
    plural = "trainjobs"
    container = CONTAINER
    operator = "Kubeflow Trainer"
    kueue_framework = "trainer.kubeflow.org/trainjob"
    conditions: Mapping[str, Reason | None] = {
        "Suspended": None,
        "Complete": None,
        "Failed": Reason.LAUNCHER_LOST,
    }
    pods_failed = ("one or more job failures",)
    # JobSet refuses it if a pod's name were longer than a label may be
    name_max = 63 - len("-node-0-9999-abcde")
    applied = Applied(
        "jobset.x-k8s.io", "v1alpha2", "jobsets", label="jobset.sigs.k8s.io/jobset-name"
    )
    bases: Mapping[str, str] = {RUNTIME: "trainingruntimes"}

    def manifest(self, plan: WorkloadPlan) -> tuple[Object, Object | None]:
        template = plan.template(
            {}, rank_variables(INDEX, f"{plan.name}-{REPLICATED_JOB}-0-0.{plan.name}")
        )
        container = template["spec"]["containers"][0]
        fixed = {key: value for key, value in template["spec"].items() if key not in _PATCHED}
        of_container = {key: value for key, value in container.items() if key not in _BY_TRAINER}
        sources = container.get("envFrom", [])
        own_sources = 1 if plan.secret_variables else 0
        if more := sources[own_sources:]:
            of_container["envFrom"] = more
        fixed["containers"] = [{"name": CONTAINER, **of_container}]
        if plan.gang_scheduler != "none":
            fixed["schedulerName"] = SCHEDULERS[plan.gang_scheduler]
        runtime_spec = _job_set(fixed, elastic=elastic_bounds(plan.spec) is not None)
        if plan.gang_scheduler != "none":
            runtime_spec["podGroupPolicy"] = {plan.gang_scheduler: {}}
        if plan.volcano_queue:
            runtime_spec["template"]["metadata"] = {
                "annotations": {VOLCANO_QUEUE: plan.volcano_queue}
            }
        runtime = self._runtime(plan.metadata["namespace"], runtime_spec)
        given = {each["name"] for each in container["env"]}
        # A TrainJob has no `envFrom`, so these variables go into `env`. Variables that `env` has
        # already take precedence, as they would over `envFrom`.
        from_secret = [
            {
                "name": name,
                "valueFrom": {"secretKeyRef": {"name": source["secretRef"]["name"], "key": name}},
            }
            for source in sources[:own_sources]
            for name in plan.secret_variables
            if name not in given
        ]
        spec: Object = {
            "runtimeRef": self._reference(runtime),
            "trainer": {
                "image": container["image"],
                "command": container["command"],
                "env": [*container["env"], *from_secret],
                "numNodes": plan.spec.n_workers,
                "resourcesPerNode": container["resources"],
            },
            "runtimePatches": _patches(template, container),
        }
        if QUEUE in plan.metadata["labels"]:
            spec["suspend"] = True  # until Kueue admits it
        return self.object(plan.metadata, spec), runtime

    def probe(self, namespace: str, labels: Mapping[str, str]) -> Object:
        """The smallest TrainJob. Its patch needs Kubeflow Trainer 2.2."""
        spec = {
            "runtimeRef": self._reference(self.probe_base(namespace)),
            "trainer": {"image": "none", "numNodes": 1},
            "runtimePatches": [_patch(0, {"metadata": {"labels": {MANAGED_BY: OURS}}})],
            "suspend": False,
        }
        return self.object({"name": PROBE, "labels": dict(labels)}, spec)

    def worker_of(self, labels: Mapping[str, str]) -> int | None:
        index = labels.get(INDEX, "")
        return (
            int(index)
            if labels.get(REPLICATED_JOB_LABEL) == REPLICATED_JOB and index.isdigit()
            else None
        )

    def parts(self, name: str) -> tuple[str, ...]:
        return f"JobSet/{name}", f"Job/{name}-{REPLICATED_JOB}-0", f"PodGroup/{name}"

    def probe_base(self, namespace: str) -> Object:
        """The TrainingRuntime of a TrainJob that sets nothing but a container. Jobs use it, too."""
        return self._runtime(
            namespace, _job_set({"containers": [{"name": CONTAINER}]}, elastic=False)
        )

    def is_suspended(self, workload: Object) -> bool:
        return bool(workload["spec"].get("suspend"))

    def check(self, api: Api, namespace: str) -> Check:
        """Its webhooks accept a TrainJob, and a TrainingRuntime of this server is there."""
        if not serves(api, self.api_version, self.plural):
            return checked(self.operator, f"the cluster has no resource type {self.name}", INSTALL)
        if not serves(api, "jobset.x-k8s.io/v1alpha2", "jobsets"):
            return checked(
                self.operator,
                "the cluster has no resource type JobSet, which Trainer needs",
                INSTALL,
            )
        try:
            self.dry_run(api, namespace)
        except ApiError as error:
            there = not is_missing(self.probe_base(namespace), error.message)
            fix = INSTALL if there else "start the server again, which makes it"
            return checked(self.operator, f"it refuses a {self.name}: {error.message}", fix)
        return checked(self.operator, f"it runs and takes a {self.name} of this server's runtime")

    def _runtime(self, namespace: str, spec: Object) -> Object:
        digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()
        metadata = {
            "name": f"client-lib-{digest[:10]}",
            "namespace": namespace,
            "labels": {MANAGED_BY: OURS},
        }
        return self.object(metadata, spec, RUNTIME)

    def _reference(self, runtime: Object) -> Object:
        return {"apiGroup": self.group, "kind": RUNTIME, "name": runtime["metadata"]["name"]}


TRAINJOB = TrainJob()


def _job_set(pod: Object, *, elastic: bool) -> Object:
    """Spec of a runtime: one Job, whose pods have their numbers. In an elastic job a lost pod is
    replaced when it has ended; in any other job the first pod that fails ends all pods."""
    retry: Object = (
        {"backoffLimit": REPLACED, "podReplacementPolicy": "Failed"}
        if elastic
        else {"backoffLimit": 0}
    )
    job = {
        "name": REPLICATED_JOB,
        "template": {
            "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
            "spec": {
                **retry,
                "template": {"spec": {"restartPolicy": "OnFailure" if elastic else "Never", **pod}},
            },
        },
    }
    return {"mlPolicy": {"numNodes": 1}, "template": {"spec": {"replicatedJobs": [job]}}}


def _patches(template: Object, container: Object) -> list[Object]:
    """Patches of the runtime. A patch takes one mount of each volume, so there are as
    many as a volume has mounts.
    """
    rounds: dict[int, list[Object]] = defaultdict(list, {0: []})
    times = Counter[str]()
    for mount in container["volumeMounts"]:
        rounds[times[mount["name"]]].append(mount)
        times[mount["name"]] += 1
    first, *more = rounds.values()
    pod = {key: value for key, value in template["spec"].items() if key in _PATCHED}
    security = container["securityContext"]
    own = {
        **pod,
        "containers": [{"name": CONTAINER, "securityContext": security, "volumeMounts": first}],
    }
    rest = [
        {"spec": {"containers": [{"name": CONTAINER, "volumeMounts": mounts}]}} for mounts in more
    ]
    return [_patch(number, each) for number, each in enumerate([{**template, "spec": own}, *rest])]


def _patch(number: int, template: Mapping[str, Any]) -> Object:
    job = {"name": REPLICATED_JOB, "template": {"spec": {"template": dict(template)}}}
    return {
        "manager": f"{MANAGER}-{number}" if number else MANAGER,
        "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [job]}}},
    }
