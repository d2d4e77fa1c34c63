"""Renders the objects of an attempt on a cluster. Pure: no client, clock, random number or environment variable.

The same arguments give the same objects, so a submit that is repeated after a crash creates nothing twice, and `render`
shows exactly what a submit would create.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from client_lib.errors import TooLarge
from client_lib.spec.job import MASK
from server_stub.runtimes import Attempt, elastic
from server_stub.runtimes.kube import names
from server_stub.runtimes.kube.catalogue.needs import Needs, needs
from server_stub.runtimes.kube.options import ClusterOptions
from server_stub.runtimes.kube.render import network_policy, plan, pod, storage
from server_stub.runtimes.kube.workload import Made, Object, WorkloadPlan

T = TypeVar("T")
CODE_MAX = 700 * 2**10
"""Largest code in a ConfigMap, in bytes: it holds 1 MiB, and base64 adds a third."""


@dataclass(frozen=True)
class Payload:
    """The code of an attempt, read only if pods can't fetch it (`needs_payload`)."""

    snapshot: bytes | None = field(default=None, repr=False)
    function: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Objects:
    launcher: Object
    """Immutable ConfigMap with the launcher, shared by jobs with the same launcher; named by its hash."""
    plan: Object
    """ConfigMap with plan.json and pod.json."""
    secret: Object = field(repr=False)
    """Secret with the workers' token and the server's CA."""
    environment: Object | None = field(repr=False)
    """Secret whose entries are environment variables of the ranks; None: there are none."""
    code: Object | None = field(repr=False)
    """ConfigMap with the code if pods can't fetch it from the server; None: they can, or there is none."""
    policy: Object | None
    """NetworkPolicy of the attempt's pods; None: their network is not restricted."""
    base: Object | None
    """Object that the workload is based on and shares with others, such as a TrainingRuntime; None: there is none."""
    workload: Object
    """The workload, such as a PyTorchJob. It owns all others; the launcher is owned by every workload that uses it."""

    def owned(self) -> list[Object]:
        """The objects that are deleted with the workload."""
        made = [self.plan, self.secret, self.environment, self.code, self.policy]
        return [each for each in made if each is not None]

    def all(self) -> list[Object]:
        """All objects, in the order of `kubectl apply`: no pod waits for a missing object."""
        base = [self.base] if self.base is not None else []
        return [self.launcher, *base, *self.owned(), self.workload]


def needs_payload(attempt: Attempt, cluster: ClusterOptions) -> bool:
    """True if the code must be in a ConfigMap, because pods can't reach the server."""
    return cluster.settings.worker_server_url is None and (attempt.snapshot is not None or attempt.function is not None)


@dataclass(frozen=True)
class _Rendering:
    attempt: Attempt
    cluster: ClusterOptions
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

    def immutable(self, kind: str, name: str, **content: Any) -> Object:
        return {"apiVersion": "v1", "kind": kind, "metadata": self.metadata(name), "immutable": True, **content}


def render(
    attempt: Attempt,
    cluster: ClusterOptions,
    worker_token: str,
    payload: Payload | None = None,
    name: str | None = None,
) -> Objects:
    """Render the objects of one attempt.

    `payload` is the code if `needs_payload`; without it the result has no code. `name` is that of
    the workload; None: the first choice.

    Raises InvalidRequest, NotSupported, NeverFits as `fields.check`; TooLarge: the code is too large for a ConfigMap.
    """
    rendering = _Rendering(
        attempt,
        cluster,
        needs(attempt.spec, cluster.catalogue),
        name or names.object_name(attempt.job_name, attempt.number, longest=cluster.kind.name_max),
        names.labels(attempt.job_id, attempt.number, attempt.job_name),
        plan.identity(attempt),
    )
    environment = _environment(rendering)
    code = _code(rendering, payload or Payload()) if needs_payload(attempt, cluster) else None
    made = _workload(rendering, environment, code)
    return Objects(
        launcher=_launcher(rendering),
        plan=_copy(_plan(rendering)),
        secret=_copy(_secret(rendering, worker_token)),
        environment=_copy(environment),
        code=code,
        policy=_copy(_policy(rendering)),
        base=_copy(made.base),
        workload=_copy(made.workload),
    )


def _copy(made: T) -> T:
    """A deep copy without shared parts, so that a change of it changes nothing else."""
    copy: T = json.loads(json.dumps(made))
    return copy


def masked(objects: Objects) -> list[Object]:
    """All objects as they may be shown: without the values of Secrets, with digests instead of binary data."""
    return [_masked(each) for each in objects.all()]


def _masked(shown: Object) -> Object:
    if shown["kind"] == "Secret":
        return shown | {key: dict.fromkeys(shown[key], MASK) for key in ("data", "stringData") if key in shown}
    if "binaryData" in shown:
        return shown | {"binaryData": _described(shown["binaryData"])}
    return shown


def _described(binary: Mapping[str, str]) -> dict[str, str]:
    contents = {name: b64decode(text) for name, text in binary.items()}
    return {name: f"{len(each)} bytes, sha256 {hashlib.sha256(each).hexdigest()}" for name, each in contents.items()}


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
    worker = plan.order(rendering.attempt, rendering.needs, rendering.cluster)
    agent = plan.for_agent(rendering.attempt, rendering.cluster)
    data = {"plan.json": json.dumps(worker, indent=2), "pod.json": json.dumps(agent, indent=2)}
    return rendering.immutable("ConfigMap", rendering.name + names.PLAN, data=data)


def _secret(rendering: _Rendering, worker_token: str) -> Object:
    content = {"token": worker_token}
    if rendering.cluster.server_ca is not None:
        content["ca.crt"] = rendering.cluster.server_ca
    return rendering.immutable("Secret", rendering.name + names.SECRET, type="Opaque", stringData=content)


def _environment(rendering: _Rendering) -> Object | None:
    values = plan.secret_environment(rendering.attempt)
    if not values:
        return None
    return rendering.immutable("Secret", rendering.name + names.ENVIRONMENT, type="Opaque", stringData=values)


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
    encoded = {name: _base64(content) for name, content in there.items()}
    return rendering.immutable("ConfigMap", rendering.name + names.CODE, binaryData=encoded)


def _policy(rendering: _Rendering) -> Object | None:
    attempt = rendering.attempt
    spec = network_policy.policy(attempt.spec, rendering.labels, rendering.cluster)
    if spec is None:
        return None
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": rendering.metadata(rendering.name + names.POLICY),
        "spec": spec,
    }


def _workload(rendering: _Rendering, environment: Object | None, code: Object | None) -> Made:
    spec, metadata = rendering.attempt.spec, rendering.metadata(rendering.name)
    gang = rendering.cluster.settings.gang_scheduler
    if spec.queue_name is not None and gang != "volcano":  # whose queue it is then
        metadata["labels"] = {**rendering.labels, names.QUEUE: spec.queue_name}
    folders, secret = _folders(rendering, code), None
    if environment is not None:
        secret = rendering.name + names.ENVIRONMENT

    def template(labels: Mapping[str, str], variables: Sequence[Object]) -> Object:
        made = pod.Template(spec, rendering.needs, rendering.cluster, folders, secret)
        return made.render(rendering.labels | dict(labels), variables)

    processes, bounds = rendering.needs.processes, elastic.bounds(spec)
    variables = tuple(environment["stringData"]) if environment is not None else ()
    made = WorkloadPlan(rendering.name, metadata, spec, processes, bounds, template, gang, variables)
    return rendering.cluster.kind.manifest(made)


def _folders(rendering: _Rendering, code: Object | None) -> list[storage.Folder]:
    mounted = {
        "launcher": names.launcher_name(rendering.cluster.launcher, rendering.attempt.job_id),
        "plan": rendering.name + names.PLAN,
        "secret": rendering.name + names.SECRET,
    }
    if code is not None:
        mounted["code"] = rendering.name + names.CODE
    own = storage.own_folders(rendering.needs, mounted)
    return own + storage.asked_folders(rendering.attempt, rendering.cluster.catalogue)


def _base64(content: bytes) -> str:
    return b64encode(content).decode()
