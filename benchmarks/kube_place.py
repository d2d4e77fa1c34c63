"""A cluster and a server of one benchmark alone, and PyTorchJobs or TrainJobs made by hand on it.

The cluster is that of tests/cluster: real programs on this machine, without Docker. The server runs
beside it, as the service account of `k8s/base/role.yaml`, so that the API server's audit log has
each of its requests.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from client_lib import Job
from client_lib.spec.wire import JobInfo
from tests.cluster import Cluster
from tests.cluster.waiting import until
from tests.contract import places

NAMESPACE = "bench"
ACCOUNT = "client-lib-server"
KINDS: dict[str, list[str]] = {"pytorchjob": [], "trainjob": ["trainer"]}
"""Kinds of objects that run jobs, with the layers of the cluster that
each needs beside its nodes.
"""
OURS = "client-lib.io/"  # labels and annotations that the server's watches look for
ROLE = Path(__file__).resolve().parents[1] / "k8s" / "base" / "role.yaml"
CATALOGUE = """\
instance_types: {types}
images: {{default: localhost/python:local, pull_policy: Never}}
"""


class Place(places.ClusterPlace):
    """A server of a cluster. `types`: the instance types of its
    catalogue; jobs are of the first.
    """

    def __init__(
        self, folder: Path, cluster: Cluster, types: list[dict[str, Any]], kind: str
    ) -> None:
        self.instance_type = types[0]["name"]
        cluster.namespace(NAMESPACE)
        account = folder / "account.kubeconfig"
        account.write_text(json.dumps(_kubeconfig_of_account(cluster)))
        catalogue = CATALOGUE.format(types=json.dumps(types))
        super().__init__(
            folder, cluster, NAMESPACE, catalogue=catalogue, kind=kind, KUBECONFIG=str(account)
        )

    @property
    def pid(self) -> int:
        return self.server.process.pid

    @property
    def job_label(self) -> str:
        """Label of the pods and services that the operator makes, with the name of its object."""
        return self.kind.applied.label if self.kind.applied else "training.kubeflow.org/job-name"

    @property
    def key_file(self) -> Path:
        """By which the server makes the tokens of workers."""
        return Path(self.server.facts()["data_dir"]) / "worker.key"

    def by_hand(self, job: Job, name: str, command: list[str] | None) -> dict[str, Any]:
        """The object that a submit of `job` makes, as a user would write it: without what only our
        launcher reads. The TrainingRuntime of a TrainJob is there afterwards. `command`: instead of
        the launcher's; None: as it is, for pods that run nothing."""
        objects = {each["kind"]: each for each in job.render().objects}
        for kind, plural in self.kind.bases.items():
            path = self.kind.collection(NAMESPACE, plural)
            self.cluster.api.apply(f"{path}/{objects[kind]['metadata']['name']}", objects[kind])
        shown = objects[self.kind.name]
        made: dict[str, Any] = json.loads(
            json.dumps(shown).replace(shown["metadata"]["name"], name)
        )
        made["metadata"] = {"name": name}
        templates = _pod_templates(made)
        for template in templates:
            _remove_launcher(template)
        for runs in (
            [made["spec"]["trainer"]]
            if "trainer" in made["spec"]
            else [_container(each) for each in templates]
        ):
            runs["command"] = command or runs["command"]
        return made

    def delete_by_hand(self, name: str) -> None:
        """And wait until its pods are gone, too."""
        self.cluster.api.delete(f"{self.jobs}/{name}")
        self.until_gone()

    def clear(self) -> None:
        """What a run that was broken off has left."""
        self.cluster.api.delete(self.jobs)
        self.until_gone()

    def until_gone(self) -> None:
        """Nothing of any job is left on the cluster."""
        core = f"/api/v1/namespaces/{NAMESPACE}"
        of_operator = [
            f"{core}/{plural}?labelSelector={self.job_label}" for plural in ("pods", "services")
        ]
        own = [f"{core}/{plural}?labelSelector={OURS}job-id" for plural in ("pods", "secrets")]
        objects = [
            f"{path}?" for path in (self.jobs, self.kind.applied_collection(NAMESPACE)) if path
        ]
        for _ in until(1200, pause_s=0.5):
            if not any(
                self.cluster.api.get(f"{path}&limit=1")["items"]
                for path in [*objects, *of_operator, *own]
            ):
                return
        raise RuntimeError("objects of jobs are left after 1200 s")

    def requests(self) -> Counter[str]:
        """Of this server to the API server until now: verb and kind."""
        user = f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"
        found: Counter[str] = Counter()
        for log in self.cluster.places.log.glob("audit*.log"):
            for entry in map(json.loads, log.read_text().splitlines()):
                if entry["user"]["username"] == user and "objectRef" in entry:
                    asked = entry["objectRef"]
                    kind = "/".join(filter(None, (asked.get("resource"), asked.get("subresource"))))
                    found[f"{entry['verb']} {kind}"] += 1
        return found


@contextlib.contextmanager
def own_cluster(name: str, *layers: str) -> Iterator[Cluster]:
    """One that runs already under this name is taken as it is, and left; else it is
    started, and removed at the end.
    """
    # and so without servers left behind
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped by SIGTERM"))
    cluster = Cluster(name)
    was_up = cluster.is_up()
    try:
        cluster.up(set(layers))
        yield cluster
    finally:
        if not was_up:
            cluster.down()


@contextlib.contextmanager
def own_place(
    cluster: Cluster, *types: dict[str, Any], place: type[Place] = Place, kind: str = "auto"
) -> Iterator[Place]:
    """`types`: the instance types of its catalogue; `place`: a kind of server."""
    # with it, each first import of a file would be measured
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CLIENT_LIB_STATE_DIR"] = os.path.join(folder, "own-state")
        os.environ["CLIENT_LIB_CONFIG"] = os.path.join(folder, "no-config.toml")
        made = place(Path(folder), cluster, list(types), kind)
        try:
            made.clear()
            yield made
        finally:
            made.close()


def _pod_templates(made: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the pod templates of a PyTorchJob, or those of the patches of a TrainJob."""
    if made["kind"] == "PyTorchJob":
        return [each["template"] for each in made["spec"]["pytorchReplicaSpecs"].values()]
    jobs = [
        each["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
        for each in made["spec"]["runtimePatches"]
    ]
    return [job["template"]["spec"]["template"] for (job,) in jobs]


def _container(template: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = template["spec"]["containers"][0]
    return found


def _remove_launcher(template: dict[str, Any]) -> None:
    """The labels of our server, and the volumes with files for the launcher."""
    meta, spec = template.get("metadata", {}), template["spec"]
    meta["labels"] = {}
    meta["annotations"] = {
        key: text for key, text in meta.get("annotations", {}).items() if OURS not in key
    }
    files = {
        each["name"] for each in spec.get("volumes", ()) if each.keys() & {"configMap", "secret"}
    }
    spec["volumes"] = [each for each in spec.get("volumes", ()) if each["name"] not in files]
    mounts = _container(template)["volumeMounts"]
    _container(template)["volumeMounts"] = [each for each in mounts if each["name"] not in files]


def final(job: Job, limit_s: float = 300) -> JobInfo:
    """Of a job that succeeds; raises RuntimeError where it doesn't."""
    info = places.ended(job, limit_s).info()
    if info.state != "SUCCEEDED":
        raise RuntimeError(f"{info.state}: {info.message}")
    return info


def becomes(
    is_so: Callable[[], bool], what: str, limit_s: float = 120, pause_s: float = 0.1
) -> None:
    for _ in until(limit_s, pause_s=pause_s):
        if is_so():
            return
    raise RuntimeError(f"after {limit_s:g} s not yet: {what}")


def _kubeconfig_of_account(cluster: Cluster) -> dict[str, Any]:
    """A kubeconfig of the service account, with the rights that `k8s/base` gives it and no more."""
    core = f"/api/v1/namespaces/{NAMESPACE}"
    cluster.api.apply(f"{core}/serviceaccounts/{ACCOUNT}", _named("v1", "ServiceAccount"))
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}"
    for text, kind in zip(
        ROLE.read_text().split("\n---\n"), ("roles", "rolebindings"), strict=True
    ):
        cluster.api.apply(f"{rbac}/{kind}/{ACCOUNT}", text)
    wanted = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": 36000},
    }
    token = cluster.api.create(f"{core}/serviceaccounts/{ACCOUNT}/token", wanted)["status"]["token"]
    admin = json.loads(cluster.kubeconfig.read_text())
    context = {
        "name": "bench",
        "context": {"cluster": "bench", "user": "bench", "namespace": NAMESPACE},
    }
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "bench", "cluster": admin["clusters"][0]["cluster"]}],
        "users": [{"name": "bench", "user": {"token": token}}],
        "contexts": [context],
        "current-context": "bench",
    }


def _named(version: str, kind: str) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": ACCOUNT}}
