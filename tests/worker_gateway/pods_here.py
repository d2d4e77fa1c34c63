"""A runtime whose pods are processes of this machine: real agents that talk to this server over its
socket.

Like a cluster's runtime it has files below a root per pod, a process 1 with the operator's
variables, and the registry; it has nothing of Kubernetes. `<data>/pods.json` tells how its pods are
made; it is read at each submit.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from client_lib.launcher_protocol.plan import WorkerPlan
from client_lib.launcher_protocol.processes import start_time
from client_lib.spec.job import JobSpec
from client_lib.spec.request import CodeSnapshot, Submitter
from client_lib.spec.states import Reason
from client_lib.spec.wire import Check, InstanceType, Manifest, WarmPoolInfo
from client_lib.worker.zipapp_build import build
from server_stub.files.job_dirs import attempt_dir, worker_dir
from server_stub.runtimes import STACKS_S, Attempt, Observation, Sink, inputs, plan
from server_stub.runtimes.kube.observe import ending
from server_stub.runtimes.verdict import (
    Stage,
    WorkerStatus,
    ended_at,
    last_stacks,
    quiet,
    started_at,
    verdict,
)
from server_stub.settings import Settings
from server_stub.worker_gateway.attempt import WorkerGroup, WorkerRegistry
from server_stub.worker_gateway.worker import StackDump, WorkerView

STAGES = {
    None: Stage.STARTING,
    "preparing": Stage.STARTING,
    "ready": Stage.READY,
    "started": Stage.STARTED,
}
LOOK_S = 0.1
MASTER_PORT = str(23456 + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]))
"""Each process of a test run has its own: pods have an address each, and those
of this machine share one.
"""


@dataclass(frozen=True)
class PodOptions:
    spool_bytes: int = 2**28
    reachable: bool = True
    """False: the pods know no server."""
    gate_port: int = 0
    log_limit_bytes: int = 2**30
    held: tuple[int, ...] = ()
    """Workers whose pods are not made."""
    server_url: str | None = None
    """None: this server's own."""
    ca: str | None = None
    stay_s: float = 600.0
    leave_s: float = 60.0
    python: str = sys.executable
    """Interpreter of the image."""
    before: str = ""
    """Statements that the agent's process runs first."""


def options(data_dir: Path) -> PodOptions:
    path = data_dir / "pods.json"
    return PodOptions(**json.loads(path.read_text())) if path.exists() else PodOptions()


class PodsHere:
    """See server_stub.runtimes.Runtime."""

    name = "kubernetes"

    def __init__(self, settings: Settings, registry: WorkerRegistry) -> None:
        self._settings, self._registry = settings, registry
        self._launcher = settings.data_dir / "worker.pyz"
        self._attempts: dict[tuple[str, int], Attempt] = {}
        self._ended: set[tuple[str, int]] = set()
        self._stopped: set[tuple[str, int]] = set()
        self._sink: Sink | None = None
        self._looks: asyncio.Task[None] | None = None

    def check(
        self, spec: JobSpec, owner: str, submitter: Submitter, namespace: str | None = None
    ) -> list[str]:
        return []

    async def why_hidden(self, spec: JobSpec, owner: str, path: str) -> str | None:
        return None

    def checkpoint_files(self, attempt: Attempt) -> None:
        return None

    def render(self, attempt: Attempt) -> Manifest:
        return Manifest(runtime=self.name, objects=[])

    async def start(self, sink: Sink) -> None:
        build(str(self._launcher))
        self._sink = sink
        self._looks = asyncio.create_task(self._look())

    def submit(self, attempt: Attempt) -> None:
        key = (attempt.job_id, attempt.number)
        self._attempts[key] = attempt
        made = options(self._settings.data_dir)
        group = WorkerGroup(
            job_id=attempt.job_id,
            job_name=attempt.job_name,
            attempt=attempt.number,
            folder=attempt_dir(attempt.job_dir, attempt.number),
            workers=tuple(
                worker_dir(attempt.job_dir, attempt.number, n)
                for n in range(attempt.spec.n_workers)
            ),
            processes_per_worker=processes(attempt),
            snapshot=attempt.snapshot,
            function=attempt.function,
            inputs=partial(_inputs, attempt) if attempt.after else None,
            log_limit_bytes=made.log_limit_bytes,
            owner=attempt.owner,
            may_return=ending.may_return(attempt.spec),
        )
        self._registry.open(group, partial(self._observe, key))
        for worker in range(attempt.spec.n_workers):
            if worker not in made.held and not pod_root(attempt, worker).exists():
                self.make_pod(attempt, worker, made)
        self._observe(key)

    def make_pod(self, attempt: Attempt, worker: int, made: PodOptions) -> None:
        root, spec = pod_root(attempt, worker), attempt.spec
        for folder in ("plan", "secret", "run"):
            (root / folder).mkdir(parents=True)
        snapshot = attempt.code.sha256 if isinstance(attempt.code, CodeSnapshot) else None
        told: dict[str, Any] = {
            "protocol": 1,
            "server_url": (made.server_url or f"http://127.0.0.1:{self._settings.port}")
            if made.reachable
            else None,
            "job": attempt.job_name,
            "job_id": attempt.job_id,
            "attempt": attempt.number,
            "n_workers": spec.n_workers,
            "spool_bytes": made.spool_bytes,
            "gang_timeout_s": 900,
            "gate_port": made.gate_port,
            "stay_s": made.stay_s,
            "leave_s": made.leave_s,
            "code": {"mode": attempt.code.mode, "sha256": snapshot},
            "function": attempt.function is not None,
            "termination_log": str(root / "termination-log"),
        }
        (root / "plan" / "pod.json").write_text(json.dumps(told))
        (root / "plan" / "plan.json").write_text(
            shared_plan(attempt)._replace(python=made.python).to_json()
        )
        (root / "secret" / "token").write_text(self._registry.token(attempt.job_id, attempt.number))
        if made.ca:
            (root / "secret" / "ca.crt").write_text(made.ca)
        if not made.reachable and attempt.function:
            (root / "code").mkdir()
            (root / "code" / "function").write_bytes(attempt.function.read_bytes())
        start_pod(
            self._launcher,
            root,
            f"{attempt.job_id}-{worker}",
            worker,
            processes(attempt) * spec.n_workers,
            made.before,
        )

    def stop(self, job_id: str, attempt: int, grace_s: float, *, interrupt: bool = False) -> None:
        key = (job_id, attempt)
        if key in self._attempts:
            self._stopped.add(key)
            if found := self._registry.find(*key):
                found.stop(grace_s, interrupt=interrupt)
            for worker in range(self._attempts[key].spec.n_workers):
                terminate(pod_root(self._attempts[key], worker))

    def signs_of_life(self, job_id: str, attempt: int) -> Hashable:
        found = self._registry.find(job_id, attempt)
        return tuple(view.signs_of_life for view in found.views()) if found else ()

    async def stacks(self, job_id: str, attempt: int) -> list[StackDump]:
        found = self._registry.find(job_id, attempt)
        return await found.stacks(STACKS_S) if found else []

    async def begin_session(
        self, job_id: str, attempt: int, request: Mapping[str, Any]
    ) -> socket.socket:
        found = self._registry.find(job_id, attempt)
        assert found is not None
        return await found.begin_session(request)

    def instance_types(self) -> Sequence[InstanceType]:
        return []

    def warm_pools(self) -> list[WarmPoolInfo]:
        return []

    async def doctor(self) -> list[Check]:
        return []

    async def close(self) -> None:
        if self._looks:
            self._looks.cancel()

    async def _look(self) -> None:
        """Poll for pods that died: there is no event for it."""
        while True:
            await asyncio.sleep(LOOK_S)
            for key in list(self._attempts):
                self._observe(key)

    def _observe(self, key: tuple[str, int]) -> None:
        attempt = self._attempts.get(key)
        if attempt is None or key in self._ended or self._sink is None:
            return
        opened = self._registry.find(*key)
        assert opened
        workers = [self._worker(attempt, view) for view in opened.views()]
        infos = tuple(worker.info() for worker in workers)
        seen = partial(Observation, *key, workers=infos)
        if all(worker.stage.over for worker in workers):
            self._ended.add(key)
            opened.release()
            self._registry.close(*key)
            end = verdict(workers, key in self._stopped, lost_first=False)
            last = seen("ended", end.reason, end.message, ended_at=ended_at(workers))
            self._sink(
                replace(
                    last,
                    started_at=started_at(workers),
                    first_failing=end.first_failing,
                    stacks=last_stacks(workers),
                )
            )
        elif {worker.stage for worker in workers} <= {Stage.STARTED, Stage.ENDED}:
            self._sink(seen("running", Reason.RUNNING, "", quiet=quiet(workers)))
        else:
            self._sink(seen("waiting", Reason.STARTING, ""))

    def _worker(self, attempt: Attempt, view: WorkerView) -> WorkerStatus:
        if view.drained:
            return WorkerStatus(view.worker, Stage.ENDED, "here", view.report)
        root = pod_root(attempt, view.worker)
        # a test may have put another in its place
        pods = [root, *root.parent.glob(f"{view.worker}-*")]
        if root.exists() and not any((pod / "pod").exists() and lives(pod) for pod in pods):
            return WorkerStatus(
                view.worker, Stage.LOST, "here", None, f"the pod of worker {view.worker} is gone"
            )
        return WorkerStatus(
            view.worker, STAGES.get(view.state, Stage.STARTED), "here", quiet=view.quiet
        )


def processes(attempt: Attempt) -> int:
    wanted = attempt.spec.processes_per_worker
    return wanted if isinstance(wanted, int) else 1


async def _inputs(attempt: Attempt) -> Iterator[bytes]:
    assert attempt.after is not None
    return inputs.archive(await attempt.after())


def pod_root(attempt: Attempt, worker: int) -> Path:
    return attempt_dir(attempt.job_dir, attempt.number) / "pods" / str(worker)


def shared_plan(attempt: Attempt) -> WorkerPlan:
    spec = attempt.spec
    snapshot = attempt.code if isinstance(attempt.code, CodeSnapshot) else None
    return WorkerPlan(
        job=attempt.job_name,
        attempt=attempt.number,
        worker=-1,
        n_workers=spec.n_workers,
        processes_per_worker=processes(attempt),
        type=str(spec.type),
        command=["function_runner.py"] if attempt.function else plan.command(attempt),
        python=sys.executable if attempt.function or spec.python_script else None,
        environment=spec.environment(),
        user_variables=sorted(spec.environment()),
        working_dir=snapshot.working_dir if snapshot else attempt.submitter.working_dir or "/",
        master_addr="",
        master_port=0,
        gpus=[],
        cores=2,
        checkpoint_dir=str(attempt.job_dir / "checkpoints"),
        log_file=spec.log_file,
        inputs=[str(number) for number in range(len(spec.after))],
        outputs=plan.output_globs(attempt, worker=0),
        outputs_every_s=0.5,
        requirements=spec.requirements or [],
        local_rank_auto=True,
        grace_s=spec.grace_s,
    )


RUN = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"


def start_pod(
    launcher: Path, root: Path, uid: str, worker: int, world_size: int, before: str = ""
) -> None:
    """Start a pod as the kubelet starts a container, with the variables that the operator sets."""
    program = ["-c", f"{before}\n{RUN}", str(launcher)] if before else [str(launcher)]
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": os.environ.get("HOME", "/"),
        "RANK": str(worker),
        "WORLD_SIZE": str(world_size),
        "PET_NNODES": "7",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": MASTER_PORT,
        "CLIENT_LIB_POD_UID": uid,
        "CLIENT_LIB_POD_NAME": f"pod-{worker}",
        "http_proxy": "http://127.0.0.1:9",  # no proxy listens there, and none must be used
        "FROM_THE_IMAGE": "yes",
    }
    with open(root / "stdout", "ab") as stdout, open(root / "stderr", "ab") as stderr:
        pod = subprocess.Popen(
            [sys.executable, "-I", "-S", *program, "pod", str(root)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
    (root / "pod").write_text(json.dumps([pod.pid, start_time(pod.pid)]))


def lives(root: Path) -> bool:
    pid, began = json.loads((root / "pod").read_text())
    try:
        zombie = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return False
    return start_time(pid) == began and not zombie


def terminate(root: Path) -> None:
    if root.exists() and lives(root):
        os.kill(json.loads((root / "pod").read_text())[0], signal.SIGTERM)
