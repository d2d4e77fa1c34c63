"""The pod template of a worker. Pure.

https://kubernetes.io/docs/concepts/security/pod-security-standards/ defines what `restricted`
admits.
"""

import math
from collections.abc import Mapping, Sequence

from client_lib.errors import InvalidRequest
from client_lib.spec.job import JobSpec
from server_stub.runtimes.kube import names
from server_stub.runtimes.kube.catalogue import WORKER, ClusterCatalogue, Needs
from server_stub.runtimes.kube.options import ClusterOptions
from server_stub.runtimes.kube.render import storage
from server_stub.runtimes.kube.render.storage import Folder, mebibytes
from server_stub.runtimes.kube.render.strategic_merge import merged
from server_stub.runtimes.kube.workload import Object

AGENT = ["python3", "-I", "-S", f"{storage.LAUNCHER}/worker.pyz", "pod"]
"""Command of the agent, isolated from the PYTHON* variables and site packages of the
image, which are for the ranks.
"""
DISK = "ephemeral-storage"
AFTER_GRACE_S = 15
"""Seconds that an agent has, after the grace period of its ranks, to send its
report and the end of its log.
"""


def image(spec: JobSpec, catalogue: ClusterCatalogue) -> str:
    """Container image of the job. Raises InvalidRequest if neither the job
    nor the catalogue names one.
    """
    asked = spec.base_image or catalogue.images.default
    if asked is None:
        raise InvalidRequest(
            "base_image is missing, and this server has no default",
            hint="any image with a python3 will do, such as "
            "pytorch/pytorch:2.8.0-cuda12.8-cudnn9-runtime",
        )
    return catalogue.images.resolve(asked)


def template(
    spec: JobSpec,
    needs: Needs,
    cluster: ClusterOptions,
    labels: Mapping[str, str],
    folders: Sequence[Folder],
    secret: str | None,
    more_labels: Mapping[str, str],
    variables: Sequence[Object],
) -> Object:
    """The pod template of all workers, without a restartPolicy, as operators set it.

    `labels`: the labels of every object of the attempt. `secret`: name of the Secret whose entries
    become environment variables; None: there is none. `more_labels`, `variables`: labels and
    environment variables that the kind of workload adds.
    """
    catalogue = cluster.catalogue
    instance = needs.instance
    environment = [
        {"name": name, "value": value}
        for name, value in _environment(spec, needs, catalogue).items()
    ]
    pod = [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": field}}}
        for name, field in (
            ("CLIENT_LIB_POD_NAME", "metadata.name"),
            ("CLIENT_LIB_POD_UID", "metadata.uid"),
        )
    ]
    of_pod, of_container = _security(needs, catalogue)
    cpu = f"{needs.cpu_m}m" if needs.cpu_m % 1000 else str(needs.cpu_m // 1000)
    amounts = {"cpu": cpu, "memory": mebibytes(needs.memory_mib)}
    if needs.gpus:
        amounts[instance.gpu_resource] = str(needs.gpus)
    amounts |= instance.extra_resources
    disk_limit = mebibytes(storage.disk_limit_mib(spec, needs, catalogue))
    container: Object = {
        "name": cluster.kind.container,
        "image": image(spec, catalogue),
        "command": AGENT,
        "env": [*environment, *variables, *pod],
        "resources": {
            "requests": {**amounts, DISK: mebibytes(storage.disk_request_mib(needs))},
            "limits": {**amounts, DISK: disk_limit},
        },
        "securityContext": of_container,
        "volumeMounts": [folder.mount() for folder in folders],
    }
    if catalogue.images.pull_policy is not None:
        container["imagePullPolicy"] = catalogue.images.pull_policy
    where = catalogue.placement(instance)
    # This field is equal in all jobs: a TrainJob can't patch it, and jobs share their
    # TrainingRuntime.
    spread = {
        "maxSkew": 1,
        "topologyKey": instance.spread,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {names.MANAGED_BY: names.OURS}},
        "matchLabelKeys": [names.JOB_ID, names.ATTEMPT],
    }
    placed = {
        "nodeSelector": where.node_selector,
        "tolerations": [
            each.model_dump(exclude_none=True, by_alias=True) for each in where.tolerations
        ],
        "affinity": _affinity(spec, needs, labels),
        "topologySpreadConstraints": [spread]
        if instance.spread is not None and spec.n_workers > 1
        else [],
        "priorityClassName": catalogue.priority_classes.get(spec.priority_class),
        "runtimeClassName": instance.runtime_class,
        "serviceAccountName": catalogue.defaults.service_account,
        "imagePullSecrets": [{"name": name} for name in catalogue.images.pull_secrets],
    }
    own_labels = {**labels, **more_labels}
    usual = {
        "metadata": {
            "labels": {**catalogue.defaults.pod_labels, **own_labels},
            "annotations": catalogue.defaults.annotations | instance.annotations,
        },
        "spec": {
            "containers": [container],
            "volumes": list({folder.name: folder.volume() for folder in folders}.values()),
            "securityContext": of_pod,
            "terminationGracePeriodSeconds": math.ceil(spec.grace_s) + AFTER_GRACE_S,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            **{field: value for field, value in placed.items() if value},
        },
    }
    found = merged(usual, _of_kind(instance.pod_template, cluster.kind.container))
    found["metadata"]["labels"] |= own_labels  # the server finds its pods by them
    if secret is not None:
        ranks = found["spec"]["containers"][0]
        ranks["envFrom"] = [{"secretRef": {"name": secret}}, *ranks.get("envFrom", [])]
    return found


def _of_kind(template: Object, container: str) -> Object:
    """The `pod_template` of a type, with the name that the container of the ranks has."""
    containers = template.get("spec", {}).get("containers")
    if not containers:
        return template
    named = [{**each, "name": container} for each in containers if each["name"] == WORKER]
    return {**template, "spec": {**template["spec"], "containers": named}}


def _environment(spec: JobSpec, needs: Needs, catalogue: ClusterCatalogue) -> dict[str, str]:
    """Variables of the agent's process. Variables of ranks are here for readers of the template
    alone: the agent sets them for each rank.

    WORLD_SIZE has the value that the training operator appends (replicas x nprocPerNode). RANK, the
    index of the pod, is left to the operator.
    """
    home = catalogue.user.home or storage.HOME
    own = spec.environment().keys() | set(spec.secrets)
    # for a user unknown to the image: without name and home getpass, torch.compile and caches fail
    ours = {"HOME": home, "USER": catalogue.user.name, "LOGNAME": catalogue.user.name}
    # a persistent home keeps its caches in their usual folders
    if "HOME" not in own and catalogue.user.home is None:
        ours |= {
            "XDG_CACHE_HOME": f"{home}/.cache",
            "HF_HOME": f"{home}/.cache/huggingface",
            "TORCH_HOME": f"{home}/.cache/torch",
            "TORCHINDUCTOR_CACHE_DIR": f"{home}/.cache/torchinductor",
            "TRITON_CACHE_DIR": f"{home}/.cache/triton",
            "NUMBA_CACHE_DIR": f"{home}/.cache/numba",
            "MPLCONFIGDIR": f"{home}/.config/matplotlib",
        }
    ours = {name: value for name, value in ours.items() if name not in own}
    if not needs.gpus:
        # Images for GPUs set it to `all`, which shows a pod without GPUs all GPUs of its node:
        # https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html
        ours["NVIDIA_VISIBLE_DEVICES"] = "void"
    return ours | {
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": str(needs.processes),
        "WORLD_SIZE": str(spec.n_workers * needs.processes),
    }


def _security(needs: Needs, catalogue: ClusterCatalogue) -> tuple[Object, Object]:
    """Security contexts of the pod and of its container; below `restricted` it runs
    as the user of the image.
    """
    user = catalogue.user
    added = {"add": needs.instance.capabilities} if needs.instance.capabilities else {}
    shared = {"fsGroup": user.fs_group, "fsGroupChangePolicy": "OnRootMismatch"}
    if catalogue.pod_security != "restricted":
        return shared, {"capabilities": added} if added else {}
    ids = {"runAsNonRoot": True, "runAsUser": user.run_as_user, "runAsGroup": user.run_as_group}
    return (
        {**ids, **shared, "seccompProfile": {"type": "RuntimeDefault"}},
        {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"], **added}},
    )


def _affinity(spec: JobSpec, needs: Needs, labels: Mapping[str, str]) -> Object:
    """Affinity to nodes, and to the other workers. Nodes are chosen by name, because the label
    kubernetes.io/hostname may differ from the name. A field takes one value, so each node that may
    be used is a term of its own."""

    def field(operator: str, name: str) -> Object:
        return {"key": "metadata.name", "operator": operator, "values": [name]}

    found: Object = {}
    never = [field("NotIn", name) for name in spec.exclude_nodes or ()]
    if spec.include_nodes or never:
        terms = [[field("In", name), *never] for name in spec.include_nodes or ()] or [never]
        nodes = {"nodeSelectorTerms": [{"matchFields": term} for term in terms]}
        found["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": nodes}
    if needs.instance.together is not None and spec.n_workers > 1:
        own = {key: labels[key] for key in (names.JOB_ID, names.ATTEMPT)}
        workers = {"topologyKey": needs.instance.together, "labelSelector": {"matchLabels": own}}
        found["podAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": [workers]}
    return found
