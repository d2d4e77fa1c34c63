"""Where the promises are tested: a server process with its runtime, and the SDK's client of it."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from client_lib import Client, Job
from client_lib.spec.states import State
from server_stub.runtimes.kube.pytorchjob import PYTORCHJOB
from server_stub.runtimes.kube.trainjob import TRAINJOB
from server_stub.runtimes.kube.workload import WorkloadKind
from tests.cluster import Cluster
from tests.cluster.errors import ApiError
from tests.cluster.waiting import until
from tests.kit.processes import free_port
from tests.kit.server_process import ServerProcess

PATIENCE_S = 90.0
KINDS = ("configmaps", "secrets", "pods", "services")
CATALOGUE = """\
instance_types:
  - {name: small, cpu: 0.4, memory_gib: 0.5}
  - {name: tiny, cpu: 0.15, memory_gib: 0.25}
  - {name: vast, cpu: 500, memory_gib: 1}
  - name: fake  # on the fake nodes of KWOK; given up soon after such a node vanishes
    cpu: 1
    memory_gib: 1
    node_selector: {type: kwok}
    annotations: {cluster.test/fate: hang}
    tolerations:
    - {key: kwok, operator: Exists}
    - key: node.kubernetes.io/not-ready
      operator: Exists
      effect: NoExecute
      toleration_seconds: 10
    - key: node.kubernetes.io/unreachable
      operator: Exists
      effect: NoExecute
      toleration_seconds: 10
defaults:
  instance_type: small
tmp_storage: {scant: 1}
images:
  default: localhost/python:local
  pull_policy: Never
"""


class Place:
    """One server. Jobs go through the SDK, with their code as a snapshot: what is
    tested is the same everywhere.
    """

    name = "local"
    instance_type: str | None = None

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = self._start()
        self.client = self._client()
        self._scripts = 0

    def _start(self) -> ServerProcess:
        return ServerProcess(self.folder / "state")

    def _client(self) -> Client:
        url = self.server.facts()["url"]
        return Client(url, (self.folder / "state" / "token").read_text().strip())

    def job(self, script: str | Callable[..., Any], **fields: Any) -> Job:
        """A job of this script's text, each in a folder of its own; or of a function."""
        usual = {
            "client": self.client,
            "instance_type": self.instance_type,
            "code": "snapshot",
            "grace_s": 5,
        }
        given: dict[str, Any] = usual | fields
        if not isinstance(script, str):
            return Job(script=script, **given)
        self._scripts += 1
        path = self.folder / f"code-{self._scripts}" / "script.py"
        path.parent.mkdir()
        path.write_text(script)
        return Job(script=path, **given)

    def run(self, script: str | Callable[..., Any], **fields: Any) -> Job:
        """Submitted, and followed to its end, whichever."""
        job = self.job(script, **fields)
        job.submit()
        return ended(job)

    def restart(self, sig: signal.Signals, pause: Callable[[], None] = lambda: None) -> None:
        """End the server, and start it again on what it left."""
        self.server.end(sig)
        pause()
        self.server = self._start()
        self.client = self._client()

    def leftovers(self) -> list[str]:
        """Objects of jobs that are still there."""
        return []

    def close(self) -> None:
        self.server.kill()


class ClusterPlace(Place):
    """A server on this machine that runs jobs in a namespace of a real
    cluster, whose pods reach it.
    """

    name = "kubernetes"

    def __init__(
        self,
        folder: Path,
        cluster: Cluster,
        namespace: str = "contract",
        python: Path | None = None,
        before: tuple[str, ...] = (),
        catalogue: str = CATALOGUE,
        kind: str = "auto",
        **variables: str,
    ) -> None:
        """`python`: the server's, if another one than ours; `before`: as of ServerProcess; `kind`:
        of its workloads; `variables`: of its settings."""
        self.cluster, self.namespace = cluster, namespace
        self._python, self._before, self._variables = python, before, variables
        cluster.namespace(namespace)
        self._port = free_port(cluster.network.host_ip)
        self._catalogue, self.file = catalogue, folder / "catalogue.yaml"
        self._choose(kind)
        self.token = new_token(folder / "users.toml", "tester", "--admin")
        super().__init__(folder)

    @property
    def kind(self) -> WorkloadKind:
        return TRAINJOB if self._kind == "trainjob" else PYTORCHJOB

    @property
    def jobs(self) -> str:
        """Path of the objects of its kind."""
        return self.kind.collection(self.namespace)

    def choose(self, kind: str, sig: signal.Signals) -> None:
        """End the server, and start it with this kind of workloads."""
        self.restart(sig, lambda: self._choose(kind))

    def _choose(self, kind: str) -> None:
        self._kind = kind
        self.file.write_text(f"{self._catalogue}job_kind: {kind}\n")

    @property
    def url(self) -> str:
        return f"http://{self.cluster.network.host_ip}:{self._port}"

    def _start(self) -> ServerProcess:
        settings = {
            "RUNTIME": "kubernetes",
            "KUBECONFIG": str(self.cluster.kubeconfig),
            "KUBE_NAMESPACE": self.namespace,
            "CATALOGUE": str(self.file),
            "WORKER_SERVER_URL": self.url,
            "HOST": self.cluster.network.host_ip,
            "PORT": str(self._port),
            "USERS_FILE": str(self.folder / "users.toml"),
        } | self._variables
        wanted = {f"CLIENT_LIB_SERVER_{name}": value for name, value in settings.items() if value}
        return ServerProcess(
            self.folder / "state", python=self._python, before=self._before, **wanted
        )

    def _client(self) -> Client:
        self.server.facts()
        return Client(self.url, self.token, insecure=True)

    def leftovers(self) -> list[str]:
        core = f"/api/v1/namespaces/{self.namespace}"
        paths = [f"{core}/{kind}" for kind in KINDS] + [
            self.jobs,
            f"/apis/networking.k8s.io/v1/namespaces/{self.namespace}/networkpolicies",
        ]
        names = [
            f"{path.rpartition('/')[2]}/{each['metadata']['name']}"
            for path in paths
            for each in self.cluster.api.get(path)["items"]
        ]
        return [name for name in names if name != "configmaps/kube-root-ca.crt"]

    def pods(self, job: Job) -> list[dict[str, Any]]:
        """Of this job, by name: the master first."""
        pods = f"/api/v1/namespaces/{self.namespace}/pods"
        path = f"{pods}?labelSelector=client-lib.io%2Fjob-name%3D{job.name}"
        found: list[dict[str, Any]] = self.cluster.api.get(path)["items"]
        return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))

    def printed(self, pod: dict[str, Any]) -> str:
        """Of one pod, as the kubelet has it."""
        return str(
            self.cluster.api.get(
                f"/api/v1/namespaces/{self.namespace}/pods/{pod['metadata']['name']}/log"
            )
        )

    def workload(self, name: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = self.cluster.api.get(f"{self.jobs}/{name}")
        except ApiError as error:
            if error.status != 404:
                raise
            return None
        return found


def ended(job: Job, limit_s: float = PATIENCE_S) -> Job:
    """Waits until it is final; says how it stands where it doesn't become so."""
    for _ in until(limit_s, pause_s=0.2):
        if job.info().state.final:
            return job
    raise AssertionError((job.info().state, job.info().reason, job.info().message))


def becomes(job: Job, state: State, limit_s: float = PATIENCE_S) -> None:
    """Waits for a state that is not final."""
    for _ in until(limit_s, pause_s=0.1):
        info = job.info()
        if info.state is state:
            return
        assert not info.state.final, (info.state, info.reason, info.message)
    raise AssertionError(f"never {state}: {job.info().reason} {job.info().message}")


def says(job: Job, text: str, limit_s: float = PATIENCE_S) -> None:
    """Waits for a message of the job with this text."""
    message = ""
    for _ in until(limit_s, pause_s=0.1):
        message = job.info().message
        if text in message:
            return
    raise AssertionError(f"{text!r} was never said, but {message!r}")


def prints(job: Job, text: str, limit_s: float = PATIENCE_S, times: int = 1) -> None:
    """Waits for so many lines of its log with this text."""
    lines: list[str] = []
    for _ in until(limit_s, pause_s=0.2):
        lines = [entry.text for entry in job.log_entries(follow=False)]
        if sum(text in line for line in lines) >= times:
            return
    raise AssertionError(f"{text!r} was never printed: {lines[-20:]}, {job.info().message}")


def new_token(users_file: Path, user: str, *flags: str) -> str:
    command = [
        sys.executable,
        "-m",
        "server_stub",
        "token",
        *flags,
        "--users-file",
        str(users_file),
        user,
    ]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1]
