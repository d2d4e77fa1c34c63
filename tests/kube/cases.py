"""Attempts of many kinds, each with the cluster and the catalogue that it is rendered for: what the
goldens show.

`python -m tests.kube.cases` writes the golden files anew, for a look at the difference.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import yaml

from client_lib.spec.job import JobSpec
from client_lib.spec.request import Code, CodeInPlace, CodeSnapshot, Submitter
from server_stub.runtimes import Attempt
from server_stub.runtimes.kube.catalogue import ClusterCatalogue
from server_stub.runtimes.kube.catalogue.file import read
from server_stub.runtimes.kube.check import check
from server_stub.runtimes.kube.options import ClusterOptions
from server_stub.runtimes.kube.pytorchjob import PYTORCHJOB
from server_stub.runtimes.kube.render import Objects, render
from server_stub.runtimes.kube.trainjob import TRAINJOB
from server_stub.runtimes.kube.workload import WorkloadKind
from server_stub.settings import Settings

GOLDEN = Path(__file__).parent / "golden"
GOLDEN_TRAINJOB = GOLDEN / "trainjob"
TOKEN = "the-workers-token"
SNAPSHOT = CodeSnapshot(
    sha256="5" * 64, root="/home/me/proj", script="src/train.py", working_dir="src"
)
LAPTOP = Submitter(
    python="/venv/bin/python",
    environment={"SHELL_SECRET": "of-the-shell"},
    working_dir="/home/me/proj",
)
SMALL = """
defaults: {instance_type: cpu.2C.8G}
images: {default: "python:3.12"}
instance_types:
  - {name: cpu.2C.8G, cpu: 2, memory_gib: 8}
"""
CLUSTER = ClusterOptions(
    Settings(
        state_dir=Path("/none"), worker_server_url="http://client-lib-server.client-lib.svc:8000"
    ),
    PYTORCHJOB,
    read(SMALL),
    namespace="jobs",
    launcher=b"zipapp",
)
VOLUMES = """
volumes:
  - {name: scratch, claim: scratch, sub_path: jobs}
  - {name: datasets, claim: datasets, read_only: true}
  - {name: team, claim: team, mount: whole, users: [ann, bob]}
  - {name: models, claim: models}
checkpoints: {volume: models, path: /models}
"""
PARENT = Path("/data/jobs") / ("5c6d7e8f" * 4)
GPUS = (Path(__file__).parents[2] / "docs" / "catalogue.example.yaml").read_text()


def cluster_with(**settings: Any) -> ClusterOptions:
    """The cluster of a server with other settings."""
    return replace(CLUSTER, settings=CLUSTER.settings.model_copy(update=settings))


def offering(catalogue: ClusterCatalogue = CLUSTER.catalogue, **entries: Any) -> ClusterOptions:
    """The cluster of a server whose catalogue has these entries, too."""
    return replace(CLUSTER, catalogue=catalogue.model_copy(update=entries))


@dataclass(frozen=True)
class Case:
    """One attempt, ready to be rendered."""

    attempt: Attempt
    cluster: ClusterOptions
    payload: dict[str, bytes] | None = None

    @property
    def catalogue(self) -> ClusterCatalogue:
        return self.cluster.catalogue

    def objects(self, kind: WorkloadKind = PYTORCHJOB) -> Objects:
        return render(self.attempt, replace(self.cluster, kind=kind), TOKEN, self.payload)

    def notices(self) -> list[str]:
        attempt = self.attempt
        return check(attempt.spec, attempt.owner, attempt.submitter, self.cluster)


@dataclass(frozen=True)
class Builder:
    """A case by what is not usual about it."""

    catalogue: str = SMALL
    cluster: ClusterOptions = CLUSTER
    code: Code = SNAPSHOT
    submitter: Submitter = LAPTOP
    number: int = 1
    owner: str = "ann"
    parent: str | None = None
    """Name of the job that is submitted again."""
    function: bool = False
    payload: dict[str, bytes] | None = None
    spec: dict[str, Any] = field(default_factory=dict)

    def build(self, name: str) -> Case:
        spec = JobSpec(**({"script": "train.py"} | self.spec))
        attempt = Attempt(
            job_id="3f2a" * 8,
            job_name=spec.name or name,
            number=self.number,
            spec=spec,
            code=self.code,
            submitter=self.submitter,
            secret_values={secret: f"value-of-{secret}" for secret in spec.secrets},
            job_dir=Path("/data/jobs/id"),
            snapshot=Path("/data/snapshots/5.tar.gz")
            if isinstance(self.code, CodeSnapshot)
            else None,
            created_at=datetime(2026, 11, 21, tzinfo=timezone.utc),
            function=Path("/data/snapshots/f") if self.function else None,
            owner=self.owner,
            checkpoints_from=PARENT / "checkpoints" if self.parent else None,
            checkpoints_name=self.parent,
        )
        catalogue = read(self.catalogue)
        return Case(attempt, replace(self.cluster, catalogue=catalogue), self.payload)


BUILDERS: dict[str, Builder] = {
    "one-worker": Builder(),
    "gang": Builder(
        GPUS,
        number=2,
        cluster=replace(CLUSTER, server_ca="-----BEGIN CERTIFICATE-----\n"),
        spec={
            "instance_type": "a100.8gpu",
            "n_workers": 3,
            "base_image": "cr.ai.cloud.ru/aicloud-base-images/py3.12-torch2.7.0:0.0.41",
            "args": ["--epochs", "2"],
            "flags": {"lr": 0.1},
            "env_variables": {"NCCL_DEBUG": "INFO", "MY_API_KEY": "an-api-key", "HOME": "/data/me"},
            "secrets": ["HF_TOKEN"],
            "priority_class": "high",
            "volumes": ["datasets:/datasets:ro"],
            "shm_size_class": "small",
            "tmp_storage": "small",
            "include_nodes": ["gpu-1", "gpu-2"],
            "exclude_nodes": ["gpu-9"],
            "internet": False,
            "grace_s": 45.5,
            "max_retry": 3,
        },
    ),
    "volcano": Builder(
        """
images: {default: "python:3.12"}
defaults: {instance_type: near}
instance_types:
  - name: near
    cpu: 2
    memory_gib: 8
    together: topology.kubernetes.io/zone
    spread: kubernetes.io/hostname
gang: {scheduler: volcano}
""",
        spec={
            "n_workers": 3,
            "queue_name": "research",
            "include_nodes": ["gpu-1", "gpu-2", "gpu-3"],
        },
    ),
    "pod-template": Builder(
        """
pod_security: privileged  # for hostNetwork
images: {default: "python:3.12"}
defaults: {instance_type: rdma}
instance_types:
  - name: rdma
    cpu: 2
    memory_gib: 8
    node_selector: {type: rdma}
    pod_template:
      metadata:
        labels: {cost-centre: research, client-lib.io/job-id: not-this}
        annotations: {example.com/nics: all}
      spec:
        hostNetwork: true
        dnsPolicy: ClusterFirstWithHostNet
        nodeSelector: {rack: a}
        initContainers:
          - {name: helper, image: "helper:1", restartPolicy: Always}
        containers:
          - name: worker
            resources:
              requests: {cpu: "1"}
              claims: [{name: nics}]
            env: [{name: NCCL_IB_HCA, value: mlx5}]
            envFrom: [{configMapRef: {name: fabric}}]
            volumeMounts: [{name: huge, mountPath: /dev/hugepages}]
        resourceClaims: [{name: nics, resourceClaimTemplateName: nics}]
        volumes:
          - {name: huge, emptyDir: {medium: HugePages}}
""",
        spec={"secrets": ["HF_TOKEN"]},
    ),
    "in-place-on-a-volume": Builder(
        GPUS,
        code=CodeInPlace(sha256="1" * 64),
        submitter=LAPTOP.model_copy(update={"working_dir": "/home/jovyan/proj"}),
        spec={
            "instance_type": "cpu.8C.32G",
            "n_workers": 2,
            "processes_per_worker": 2,
            "conda_env": "torch",
        },
    ),
    "command": Builder(
        code=CodeInPlace(),
        submitter=Submitter(),
        spec={
            "script": "bash -c 'echo $RANK'",
            "type": "binary",
            "env_variables": {"PYTHONHOME": "/x"},
        },
    ),
    "function-out-of-reach": Builder(
        cluster=cluster_with(worker_server_url=None),
        function=True,
        payload={"snapshot.tar.gz": b"archive", "function": b"pickle"},
        spec={"script": "my_function", "n_workers": 2, "internet": False},
    ),
    "elastic": Builder(
        spec={
            "type": "pytorch_elastic",
            "n_workers": 3,
            "processes_per_worker": 2,
            "elastic_min_workers": 2,
            "elastic_max_restarts": 3,
        }
    ),
    "in-a-queue": Builder(
        cluster=replace(CLUSTER, kueue=True), spec={"queue_name": "team", "exclude_nodes": ["n1"]}
    ),
    "volumes-of-an-owner": Builder(
        SMALL + VOLUMES,
        owner="Ann@corp.example",
        parent="before",
        spec={"volumes": ["scratch:/scratch", "datasets:/datasets", "models:/mine:ro"]},
    ),
    "root-of-the-image": Builder(SMALL + "pod_security: baseline\n", spec={"internet": True}),
    "rdma-privileged": Builder(
        GPUS.replace("capabilities: []", "capabilities: [IPC_LOCK]") + "pod_security: privileged\n",
        spec={
            "instance_type": "h100.8gpu",
            "n_workers": 2,
            "base_image": "nvcr.io/nvidia/pytorch:25.08-py3",
        },
    ),
}


def cases() -> Iterator[tuple[str, Case]]:
    """Each by its name."""
    for name, builder in BUILDERS.items():
        yield name, builder.build(name)


def case(name: str) -> Case:
    return BUILDERS[name].build(name)


def text(objects: Objects) -> str:
    """As `kubectl apply -f` reads it."""
    return _yaml(objects.all())


def trainjob_text(objects: Objects) -> str:
    """The settings and objects that differ from those of a PyTorchJob."""
    return _yaml([objects.base, objects.workload])


def _yaml(objects: list[Any]) -> str:
    return yaml.dump_all(objects, Dumper=_Readable, sort_keys=False, width=1000)


class _Readable(yaml.SafeDumper):
    """Writes texts of several lines as such, and the same list twice
    instead of a reference to it.
    """

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _block(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar(
        "tag:yaml.org,2002:str", value, style="|" if "\n" in value else None
    )


_Readable.add_representer(str, _block)


if __name__ == "__main__":
    for name, each in cases():
        (GOLDEN / f"{name}.yaml").write_text(text(each.objects()))
        (GOLDEN_TRAINJOB / f"{name}.yaml").write_text(trainjob_text(each.objects(TRAINJOB)))
        print(name, *each.notices(), sep="\n    ")
