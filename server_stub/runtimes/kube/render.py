"""From an attempt to the objects that it is on a cluster. Pure: no client, no clock, no chance, no environment.

The same arguments give the same objects, so a submit that is repeated after a crash makes nothing twice, and `render`
shows what a submit would create.
"""

from __future__ import annotations

import json
from base64 import b64encode
from dataclasses import dataclass, field
from typing import Any, TypeVar

from client_lib.errors import TooLarge
from client_lib.spec.job import JobSpec
from server_stub.runtimes import Attempt, elastic
from server_stub.runtimes.kube import names, plan, pod, policy, storage
from server_stub.runtimes.kube.catalogue import Catalogue
from server_stub.runtimes.kube.needs import Needs, needs
from server_stub.runtimes.kube.objects import Object, Objects
from server_stub.runtimes.kube.options import ClusterSettings

T = TypeVar("T")
CODE_MAX = 700 * 2**10
"""Bytes of code that ride in a ConfigMap: it holds 1 MiB, and base64 takes a third more."""


@dataclass(frozen=True)
class Payload:
    """Bytes of the attempt's code, read only where pods can't fetch them (`needs_payload`)."""

    snapshot: bytes | None = field(default=None, repr=False)
    function: bytes | None = field(default=None, repr=False)


def needs_payload(attempt: Attempt, cluster: ClusterSettings) -> bool:
    """Whether the code must ride in a ConfigMap, because pods can't reach the server."""
    return cluster.server_url is None and (attempt.snapshot is not None or attempt.function is not None)


@dataclass(frozen=True)
class _Rendering:
    """What every part is made of."""

    attempt: Attempt
    cluster: ClusterSettings
    catalogue: Catalogue
    needs: Needs
    name: str
    labels: dict[str, str]
    identity: str

    def metadata(self, name: str) -> dict[str, Any]:
        return {
            "name": name,
            "namespace": self.cluster.namespace,
            "labels": self.labels,
            "annotations": {names.HASH: self.identity},
        }


def render(
    attempt: Attempt,
    cluster: ClusterSettings,
    catalogue: Catalogue,
    worker_token: str,
    payload: Payload | None = None,
    name: str | None = None,
) -> Objects:
    """The objects of one attempt. `payload`: where `needs_payload`; None there: they are shown without the code.
    `name`: of the PyTorchJob; None: the first choice.

    Raises InvalidRequest, NotSupported, NeverFits: as `fields.check`; TooLarge: code that no ConfigMap holds.
    """
    rendering = _Rendering(
        attempt,
        cluster,
        catalogue,
        needs(attempt.spec, catalogue),
        name or names.object_name(attempt.job_name, attempt.number),
        names.labels(attempt.job_id, attempt.number, attempt.job_name),
        plan.identity(attempt),
    )
    environment = _environment(rendering)
    code = _code(rendering, payload or Payload()) if needs_payload(attempt, cluster) else None
    return Objects(
        launcher=_launcher(rendering),
        plan=_apart(_plan(rendering)),
        secret=_apart(_secret(rendering, worker_token)),
        environment=_apart(environment),
        code=code,
        policy=_apart(_policy(rendering)),
        job=_apart(_job(rendering, environment, code)),
    )


def _apart(made: T) -> T:
    """No part of it is the catalogue's own, or stands in it twice: who is given it may change it."""
    apart: T = json.loads(json.dumps(made))
    return apart


def _launcher(rendering: _Rendering) -> Object:
    cluster = rendering.cluster
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": names.launcher_name(cluster.launcher, rendering.attempt.job_id),
            "namespace": cluster.namespace,
            "labels": {names.MANAGED_BY: names.OURS},
        },
        "immutable": True,
        "binaryData": {"worker.pyz": _base64(cluster.launcher)},
    }


def _plan(rendering: _Rendering) -> Object:
    worker = plan.order(rendering.attempt, rendering.needs, rendering.cluster, rendering.catalogue)
    agent = plan.for_agent(rendering.attempt, rendering.cluster, rendering.catalogue)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": rendering.metadata(names.plan_name(rendering.name)),
        "immutable": True,
        "data": {"plan.json": json.dumps(worker, indent=2), "pod.json": json.dumps(agent, indent=2)},
    }


def _secret(rendering: _Rendering, worker_token: str) -> Object:
    content = {"token": worker_token}
    if rendering.cluster.server_ca is not None:
        content["ca.crt"] = rendering.cluster.server_ca
    return _sealed(rendering, names.secret_name(rendering.name), content)


def _environment(rendering: _Rendering) -> Object | None:
    values = plan.secret_environment(rendering.attempt)
    return _sealed(rendering, names.environment_name(rendering.name), values) if values else None


def _sealed(rendering: _Rendering, name: str, content: dict[str, str]) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": rendering.metadata(name),
        "immutable": True,
        "type": "Opaque",
        "stringData": content,
    }


def _code(rendering: _Rendering, payload: Payload) -> Object:
    files = {"snapshot.tar.gz": payload.snapshot, "function": payload.function}
    there = {name: content for name, content in files.items() if content is not None}
    size = sum(map(len, there.values()))
    if size > CODE_MAX:
        raise TooLarge(
            f"the code has {size / 2**10:.0f} KiB; where pods don't reach the server, at most {CODE_MAX // 2**10} KiB "
            "travel to them",
            hint="the server's setting worker_server_url says how pods reach it; or put the code on a volume",
        )
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": rendering.metadata(names.code_name(rendering.name)),
        "immutable": True,
        "binaryData": {name: _base64(content) for name, content in there.items()},
    }


def _policy(rendering: _Rendering) -> Object | None:
    if not policy.wanted(rendering.attempt.spec, rendering.catalogue):
        return None
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": rendering.metadata(names.policy_name(rendering.name)),
        "spec": policy.egress(rendering.labels, rendering.cluster, rendering.catalogue),
    }


def _job(rendering: _Rendering, environment: Object | None, code: Object | None) -> Object:
    spec, metadata = rendering.attempt.spec, rendering.metadata(rendering.name)
    run: dict[str, Any] = {"cleanPodPolicy": "Running"}  # the default lets others run on after the end; All takes logs
    elastic_policy = _elastic_policy(spec)
    if elastic_policy is None:
        run["backoffLimit"] = 0
    if spec.queue_name is not None:
        metadata["labels"] = {**rendering.labels, names.QUEUE: spec.queue_name}
        run["suspend"] = True  # until Kueue admits it
    return {
        "apiVersion": f"{names.GROUP}/{names.VERSION}",
        "kind": names.KIND,
        "metadata": metadata,
        "spec": {
            "nprocPerNode": str(rendering.needs.processes),  # "auto" is a process for each core of the host
            **({"elasticPolicy": elastic_policy} if elastic_policy else {}),
            "runPolicy": run,
            "pytorchReplicaSpecs": _replicas(rendering, environment, code),
        },
    }


def _elastic_policy(spec: JobSpec) -> dict[str, Any] | None:
    """For who reads the manifest, and for the operator, to which the first success of a worker is the job's then. The
    agents in the pods get theirs from the plan."""
    bounds = elastic.bounds(spec)
    if bounds is None:
        return None
    return {
        "rdzvBackend": "c10d",
        "minReplicas": bounds.least,
        "maxReplicas": spec.n_workers,
        "maxRestarts": bounds.returns,
    }


def _replicas(rendering: _Rendering, environment: Object | None, code: Object | None) -> dict[str, Any]:
    """Worker 0 is the master: of a job with workers only, the operator tells nobody who that is.

    An elastic job has workers only: a lost one is made anew, and the end of none is the end of all.
    """

    def replica(count: int, restart: str = "Never") -> dict[str, Any]:
        return {"replicas": count, "restartPolicy": restart, "template": _template(rendering, environment, code)}

    if elastic.bounds(rendering.attempt.spec) is not None:
        return {"Worker": replica(rendering.needs.workers, "OnFailure")}
    workers = {"Worker": replica(rendering.needs.workers - 1)} if rendering.needs.workers > 1 else {}
    return {"Master": replica(1), **workers}


def _template(rendering: _Rendering, environment: Object | None, code: Object | None) -> dict[str, Any]:
    spec, cluster, catalogue = rendering.attempt.spec, rendering.cluster, rendering.catalogue
    mounted = {
        "launcher": names.launcher_name(cluster.launcher, rendering.attempt.job_id),
        "plan": names.plan_name(rendering.name),
        "secret": names.secret_name(rendering.name),
    }
    if code is not None:
        mounted["code"] = names.code_name(rendering.name)
    folders = storage.own_folders(rendering.needs, cluster, mounted) + storage.asked_folders(spec, catalogue)
    secret = names.environment_name(rendering.name) if environment is not None else None
    labels, where = rendering.labels, []
    if elastic.bounds(spec) is not None:
        labels, where = labels | {names.ELASTIC: "true"}, pod.elastic_place(rendering.name)
    return pod.template(spec, rendering.needs, cluster, catalogue, labels, folders, secret, where)


def _base64(content: bytes) -> str:
    return b64encode(content).decode()
