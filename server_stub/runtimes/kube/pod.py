"""The pod template of a worker, as Kubernetes reads it. Pure.

Sources: training-operator v1.9.4, pkg/controller.v1/pytorch/envvar.go (what it appends to every container), and
https://kubernetes.io/docs/concepts/security/pod-security-standards/ (what `restricted` admits).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from client_lib.spec.job import JobSpec
from server_stub.runtimes.kube import names, storage
from server_stub.runtimes.kube.catalogue import Catalogue, placement
from server_stub.runtimes.kube.fields import image
from server_stub.runtimes.kube.needs import Needs, mebibytes
from server_stub.runtimes.kube.options import ClusterSettings, PodSecurity
from server_stub.runtimes.kube.storage import Folder

AGENT = ["python3", "-I", "-S", f"{storage.LAUNCHER}/worker.pyz", "pod"]
"""The image's PYTHON* variables and site packages are the ranks' and don't act on it."""
MASTER_PORT = 23456
"""The operator's own, of its container port `pytorchjob-port`."""
AFTER_GRACE_S = 15
"""Seconds that an agent has, after its ranks have had theirs, to hand over its report and the end of its log."""


def template(
    spec: JobSpec,
    needs: Needs,
    cluster: ClusterSettings,
    catalogue: Catalogue,
    labels: dict[str, str],
    folders: Sequence[Folder],
    environment_secret: str | None,
    where: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """`environment_secret`: the Secret whose entries become variables; None: there is none. `where`: variables that
    say which worker it is and where the master is, if the operator doesn't.

    There is no restartPolicy in it: the operator warns about one at every look.
    """
    return {
        "metadata": {
            "labels": catalogue.defaults.pod_labels | labels,
            "annotations": catalogue.defaults.annotations | needs.instance.annotations,
        },
        "spec": {
            "containers": [_container(spec, needs, cluster, catalogue, folders, environment_secret, where)],
            "volumes": [folder.volume() for folder in folders],
            "securityContext": _pod_security(catalogue, cluster.pod_security),
            "terminationGracePeriodSeconds": math.ceil(spec.grace_s) + AFTER_GRACE_S,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            **_placed(spec, needs, catalogue),
        },
    }


def _container(
    spec: JobSpec,
    needs: Needs,
    cluster: ClusterSettings,
    catalogue: Catalogue,
    folders: Sequence[Folder],
    environment_secret: str | None,
    where: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": names.CONTAINER,
        "image": image(spec, catalogue),
        "command": AGENT,
        "env": [*_home(spec, catalogue), *_devices(needs), *_ranks(needs), *where, *_downward()],
        "resources": _resources(needs),
        "securityContext": _container_security(needs, cluster.pod_security),
        "volumeMounts": [folder.mount() for folder in folders],
    }
    if environment_secret is not None:
        container["envFrom"] = [{"secretRef": {"name": environment_secret}}]
    if catalogue.images.pull_policy is not None:
        container["imagePullPolicy"] = catalogue.images.pull_policy
    return container


def _home(spec: JobSpec, catalogue: Catalogue) -> list[dict[str, Any]]:
    """A user that the image doesn't know has neither name nor home, and getpass, torch.compile and caches fail."""
    home = catalogue.user.home or storage.HOME
    own = spec.environment().keys() | set(spec.secrets)
    ours = {"HOME": home, "USER": catalogue.user.name, "LOGNAME": catalogue.user.name}
    if "HOME" not in own and catalogue.user.home is None:  # a home that is kept has its caches where they belong
        ours |= {
            "XDG_CACHE_HOME": f"{home}/.cache",
            "HF_HOME": f"{home}/.cache/huggingface",
            "TORCH_HOME": f"{home}/.cache/torch",
            "TORCHINDUCTOR_CACHE_DIR": f"{home}/.cache/torchinductor",
            "TRITON_CACHE_DIR": f"{home}/.cache/triton",
            "NUMBA_CACHE_DIR": f"{home}/.cache/numba",
            "MPLCONFIGDIR": f"{home}/.config/matplotlib",
        }
    return [{"name": name, "value": value} for name, value in ours.items() if name not in own]


def _devices(needs: Needs) -> list[dict[str, Any]]:
    """Images for GPUs say NVIDIA_VISIBLE_DEVICES=all: on a node with GPUs a pod without any would see all of them.
    https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html"""
    return [] if needs.gpus else [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]


def _ranks(needs: Needs) -> list[dict[str, Any]]:
    """For who reads the template: of the agent's own process. The ranks get theirs from it.

    WORLD_SIZE is what the operator appends too, replicas x nprocPerNode. RANK, which to the operator is the pod's
    index, is left to it.
    """
    return [
        {"name": "LOCAL_RANK", "value": "0"},
        {"name": "LOCAL_WORLD_SIZE", "value": str(needs.processes)},
        {"name": "WORLD_SIZE", "value": str(needs.workers * needs.processes)},
    ]


def elastic_place(object_name: str) -> list[dict[str, Any]]:
    """Of a job with workers only the operator tells no pod which it is, nor where the first is."""
    index = {"fieldRef": {"fieldPath": f"metadata.labels['{names.REPLICA_INDEX}']"}}
    return [
        {"name": "RANK", "valueFrom": index},
        {"name": "MASTER_ADDR", "value": names.pod_name(object_name, 0, elastic=True)},
        {"name": "MASTER_PORT", "value": str(MASTER_PORT)},
    ]


def _downward() -> list[dict[str, Any]]:
    return [
        {"name": "CLIENT_LIB_POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "CLIENT_LIB_POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
    ]


def _resources(needs: Needs) -> dict[str, Any]:
    amounts = {"cpu": _cpu(needs.cpu_m), "memory": mebibytes(needs.memory_mib)}
    if needs.gpus:
        amounts[needs.instance.gpu_resource] = str(needs.gpus)
    amounts |= needs.instance.extra_resources
    return {"requests": amounts, "limits": dict(amounts)}


def _cpu(thousandths: int) -> str:
    return f"{thousandths}m" if thousandths % 1000 else str(thousandths // 1000)


def _pod_security(catalogue: Catalogue, level: PodSecurity) -> dict[str, Any]:
    """Relaxed, the image's own user runs."""
    user = catalogue.user
    shared = {"fsGroup": user.fs_group, "fsGroupChangePolicy": "OnRootMismatch"}
    if level != "restricted":
        return shared
    return {
        "runAsNonRoot": True,
        "runAsUser": user.run_as_user,
        "runAsGroup": user.run_as_group,
        **shared,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _container_security(needs: Needs, level: PodSecurity) -> dict[str, Any]:
    added = {"add": needs.instance.capabilities} if needs.instance.capabilities else {}
    if level != "restricted":
        return {"capabilities": added} if added else {}
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"], **added}}


def _placed(spec: JobSpec, needs: Needs, catalogue: Catalogue) -> dict[str, Any]:
    """Where it may run and before whom; only what is said."""
    where = placement(catalogue, needs.instance)
    said: dict[str, Any] = {
        "nodeSelector": where.node_selector,
        "tolerations": [each.model_dump(exclude_none=True, by_alias=True) for each in where.tolerations],
        "affinity": _affinity(spec.include_nodes or [], spec.exclude_nodes or []),
        "priorityClassName": catalogue.priority_classes.get(spec.priority_class),
        "runtimeClassName": needs.instance.runtime_class,
        "serviceAccountName": catalogue.defaults.service_account,
        "imagePullSecrets": [{"name": name} for name in catalogue.images.pull_secrets],
    }
    return {key: value for key, value in said.items() if value}


def _affinity(include: Sequence[str], exclude: Sequence[str]) -> dict[str, Any]:
    """By the node's name: its label kubernetes.io/hostname may say another one. A field takes one value, so each node
    that may be used is a term of its own."""
    if not include and not exclude:
        return {}
    never = [_field("NotIn", name) for name in exclude]
    terms = [[_field("In", name), *never] for name in include] or [never]
    required = {"nodeSelectorTerms": [{"matchFields": term} for term in terms]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def _field(operator: str, name: str) -> dict[str, Any]:
    return {"key": "metadata.name", "operator": operator, "values": [name]}
