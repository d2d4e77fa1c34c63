"""A server in the deployed shape, for a benchmark: a pod of the cluster, made from the Dockerfile
and `k8s/base`.

Its data is on an emptyDir, and the operators run beside the API server; the rest is as `k8s/` has
it.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

from kube_place import NAMESPACE, Place

from client_lib import Client
from tests.cluster import Cluster, builds, programs
from tests.deploy import image

ROOT = Path(__file__).resolve().parents[1]
IMAGE = "localhost/client-lib-server:bench"
OVERLAY = """\
namespace: {namespace}
resources: [../../base]
images: [{{name: client-lib-server, newName: localhost/client-lib-server, newTag: bench}}]
secretGenerator:
  - name: client-lib-users
    files: [users.toml]
    options: {{disableNameSuffixHash: true}}
configMapGenerator:
  - name: client-lib-catalogue
    behavior: replace
    files: [catalogue.yaml=catalogue.yaml]
patches:
  - patch: |
      $patch: delete
      apiVersion: v1
      kind: PersistentVolumeClaim
      metadata: {{name: client-lib-data}}
  - target: {{kind: Deployment, name: client-lib-server}}
    patch: |
      - {{op: replace, path: /spec/template/spec/volumes/0, value: {{name: data, emptyDir: {{}}}}}}
"""


class DeployedPlace(Place):
    """A server that is a pod. `types`: the instance types of its
    catalogue; jobs are of the first.
    """

    def __init__(
        self, folder: Path, cluster: Cluster, types: list[dict[str, Any]], kind: str
    ) -> None:
        builds.build(cluster.home, ["kubectl"], ["python"], print)
        cluster.load(str(image.build(cluster.home, folder, IMAGE)))
        super().__init__(folder, cluster, types, kind)

    @property
    def url(self) -> str:
        service = self.cluster.api.get(f"/api/v1/namespaces/{NAMESPACE}/services/client-lib")
        return f"http://{service['spec']['clusterIP']}:8080"

    def _start(self) -> ServerPod:
        overlay = self.folder / "k8s" / "overlays" / "bench"
        shutil.copytree(ROOT / "k8s" / "base", self.folder / "k8s" / "base")
        overlay.mkdir(parents=True)
        (overlay / "kustomization.yaml").write_text(OVERLAY.format(namespace=NAMESPACE))
        for name in ("users.toml", "catalogue.yaml"):
            shutil.copy(self.folder / name, overlay / name)
        return ServerPod(self.cluster, overlay)

    def _client(self) -> Client:
        return Client(self.url, self.token, insecure=True)


class ServerPod:
    """The Deployment of an overlay, ready. It ends with its cluster, or by `kill`."""

    def __init__(self, cluster: Cluster, overlay: Path) -> None:
        self._cluster = cluster
        self._kubectl = [
            str(programs.path(cluster.home, "kubectl")),
            f"--kubeconfig={cluster.kubeconfig}",
        ]
        self._run("apply", "-k", str(overlay))
        self._run(
            "-n", NAMESPACE, "rollout", "status", "deployment/client-lib-server", "--timeout=120s"
        )

    def kill(self) -> None:
        self._run("-n", NAMESPACE, "delete", "deployment/client-lib-server", "--wait")

    def _run(self, *arguments: str) -> None:
        ended = subprocess.run([*self._kubectl, *arguments], capture_output=True, text=True)
        if ended.returncode:
            raise RuntimeError(f"kubectl {' '.join(arguments)}: {ended.stderr}")
