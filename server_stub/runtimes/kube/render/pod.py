"""The pod template of a worker. Pure.

https://kubernetes.io/docs/concepts/security/pod-security-standards/ defines what `restricted` admits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from client_lib.errors import InvalidRequest
from client_lib.spec.job import JobSpec
from server_stub.runtimes.kube import names
from server_stub.runtimes.kube.catalogue import ClusterCatalogue, PodSecurity, placement
from server_stub.runtimes.kube.catalogue.needs import Needs, mebibytes
from server_stub.runtimes.kube.render import storage
from server_stub.runtimes.kube.render.storage import Folder
from server_stub.runtimes.kube.workload import ClusterOptions, Object

AGENT = ["python3", "-I", "-S", f"{storage.LAUNCHER}/worker.pyz", "pod"]
"""Command of the agent, isolated from the PYTHON* variables and site packages of the image, which are for the ranks."""
DISK = "ephemeral-storage"
AFTER_GRACE_S = 15
"""Seconds that an agent has, after the grace period of its ranks, to send its report and the end of its log."""


def image(spec: JobSpec, catalogue: ClusterCatalogue) -> str:
    """Container image of the job. Raises InvalidRequest if neither the job nor the catalogue names one."""
    asked = spec.base_image or catalogue.images.default
    if asked is None:
        raise InvalidRequest(
            "base_image is missing, and this server has no default",
            hint="any image with a python3 will do, such as pytorch/pytorch:2.8.0-cuda12.8-cudnn9-runtime",
        )
    return catalogue.images.resolve(asked)


@dataclass(frozen=True)
class Template:
    """The parts of a pod template that all workers share."""

    spec: JobSpec
    needs: Needs
    cluster: ClusterOptions
    labels: Mapping[str, str]
    """Labels of every object of the attempt."""
    folders: Sequence[Folder]
    environment_secret: str | None
    """Name of the Secret whose entries become environment variables; None: there is none."""

    def render(self, labels: Mapping[str, str], variables: Sequence[Object]) -> Object:
        """The template with additional labels and variables. It has no restartPolicy, as operators set it."""
        catalogue = self.cluster.catalogue
        defaults, security = catalogue.defaults, _pod_security(catalogue)
        return {
            "metadata": {
                "labels": {**defaults.pod_labels, **self.labels, **labels},
                "annotations": defaults.annotations | self.needs.instance.annotations,
            },
            "spec": {
                "containers": [self._container(variables)],
                "volumes": list({folder.name: folder.volume() for folder in self.folders}.values()),
                "securityContext": security,
                "terminationGracePeriodSeconds": math.ceil(self.spec.grace_s) + AFTER_GRACE_S,
                "automountServiceAccountToken": False,
                "enableServiceLinks": False,
                **_placed(self.spec, self.needs, catalogue, self.labels),
            },
        }

    def _container(self, variables: Sequence[Object]) -> Object:
        needs, catalogue = self.needs, self.cluster.catalogue
        uid = _from_pod("CLIENT_LIB_POD_UID", "metadata.uid")
        pod = [_from_pod("CLIENT_LIB_POD_NAME", "metadata.name"), uid]
        container: Object = {
            "name": self.cluster.kind.container,
            "image": image(self.spec, catalogue),
            "command": AGENT,
            "env": [*_environment(self.spec, needs, catalogue), *variables, *pod],
            "resources": _resources(needs, storage.disk_limit_mib(self.spec, needs, catalogue)),
            "securityContext": _container_security(needs, catalogue.pod_security),
            "volumeMounts": [folder.mount() for folder in self.folders],
        }
        if self.environment_secret is not None:
            container["envFrom"] = [{"secretRef": {"name": self.environment_secret}}]
        if catalogue.images.pull_policy is not None:
            container["imagePullPolicy"] = catalogue.images.pull_policy
        return container


def _environment(spec: JobSpec, needs: Needs, catalogue: ClusterCatalogue) -> list[Object]:
    """Variables of the agent's process. Those of ranks are for readers of the template: the agent sets them by rank.

    WORLD_SIZE has the value that the training operator appends (replicas x nprocPerNode). RANK, the index of the pod,
    is left to the operator.
    """
    home = catalogue.user.home or storage.HOME
    own = spec.environment().keys() | set(spec.secrets)
    # for a user unknown to the image: without name and home getpass, torch.compile and caches fail
    ours = {"HOME": home, "USER": catalogue.user.name, "LOGNAME": catalogue.user.name}
    if "HOME" not in own and catalogue.user.home is None:  # a persistent home keeps its caches in their usual folders
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
    if not needs.gpus:  # images for GPUs set it to `all`, which shows a pod without GPUs all GPUs of its node:
        # https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html
        ours["NVIDIA_VISIBLE_DEVICES"] = "void"
    ours |= {
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": str(needs.processes),
        "WORLD_SIZE": str(needs.workers * needs.processes),
    }
    return [{"name": name, "value": value} for name, value in ours.items()]


def _from_pod(name: str, field: str) -> Object:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": field}}}


def _resources(needs: Needs, disk_limit_mib: int) -> Object:
    cpu = f"{needs.cpu_m}m" if needs.cpu_m % 1000 else str(needs.cpu_m // 1000)
    amounts = {"cpu": cpu, "memory": mebibytes(needs.memory_mib)}
    if needs.gpus:
        amounts[needs.instance.gpu_resource] = str(needs.gpus)
    amounts |= needs.instance.extra_resources
    return {
        "requests": {**amounts, DISK: mebibytes(storage.disk_request_mib(needs))},
        "limits": {**amounts, DISK: mebibytes(disk_limit_mib)},
    }


def _pod_security(catalogue: ClusterCatalogue) -> Object:
    """Security context of the pod; below `restricted` it runs as the user of the image."""
    user = catalogue.user
    shared = {"fsGroup": user.fs_group, "fsGroupChangePolicy": "OnRootMismatch"}
    if catalogue.pod_security != "restricted":
        return shared
    return {
        "runAsNonRoot": True,
        "runAsUser": user.run_as_user,
        "runAsGroup": user.run_as_group,
        **shared,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _container_security(needs: Needs, level: PodSecurity) -> Object:
    added = {"add": needs.instance.capabilities} if needs.instance.capabilities else {}
    if level != "restricted":
        return {"capabilities": added} if added else {}
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"], **added}}


def _placed(spec: JobSpec, needs: Needs, catalogue: ClusterCatalogue, labels: Mapping[str, str]) -> Object:
    """Nodes and priority of the pod, without empty fields."""
    where = placement(catalogue, needs.instance)
    fields: Object = {
        "nodeSelector": where.node_selector,
        "tolerations": [each.model_dump(exclude_none=True, by_alias=True) for each in where.tolerations],
        "affinity": {**_affinity(spec.include_nodes or [], spec.exclude_nodes or []), **_together(needs, labels)},
        "topologySpreadConstraints": _spread(needs),
        "priorityClassName": catalogue.priority_classes.get(spec.priority_class),
        "runtimeClassName": needs.instance.runtime_class,
        "serviceAccountName": catalogue.defaults.service_account,
        "imagePullSecrets": [{"name": name} for name in catalogue.images.pull_secrets],
    }
    return {key: value for key, value in fields.items() if value}


def _affinity(include: Sequence[str], exclude: Sequence[str]) -> Object:
    """Affinity by node name, as the label kubernetes.io/hostname may differ from it. A field takes one value, so each
    node that may be used is a term of its own."""
    if not include and not exclude:
        return {}
    never = [_field("NotIn", name) for name in exclude]
    terms = [[_field("In", name), *never] for name in include] or [never]
    required = {"nodeSelectorTerms": [{"matchFields": term} for term in terms]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def _together(needs: Needs, labels: Mapping[str, str]) -> Object:
    if needs.instance.together is None or needs.workers == 1:
        return {}
    own = {key: labels[key] for key in (names.JOB_ID, names.ATTEMPT)}
    term = {"topologyKey": needs.instance.together, "labelSelector": {"matchLabels": own}}
    return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def _spread(needs: Needs) -> list[Object]:
    """The constraint, the same for all jobs: a TrainJob can't patch it, and jobs share their TrainingRuntime."""
    if needs.instance.spread is None or needs.workers == 1:
        return []
    constraint = {
        "maxSkew": 1,
        "topologyKey": needs.instance.spread,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {names.MANAGED_BY: names.OURS}},
        "matchLabelKeys": [names.JOB_ID, names.ATTEMPT],
    }
    return [constraint]


def _field(operator: str, name: str) -> Object:
    return {"key": "metadata.name", "operator": operator, "values": [name]}
