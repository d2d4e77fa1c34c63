"""The Kubernetes runtime: watches its namespaces and runs each attempt as a gang of pods.

`assemble` makes it from the settings of the server. server_stub.runtimes.Runtime documents the
methods. They run on the event loop's thread; the watches and all requests run in threads of their
own.
"""

import asyncio
import logging
import socket
import tempfile
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from client_lib.errors import Conflict, InvalidRequest
from client_lib.spec.job import JobSpec
from client_lib.spec.request import Submitter
from client_lib.spec.secrets import MASK
from client_lib.spec.states import Reason
from client_lib.spec.wire import Check, InstanceType, Manifest, WarmPoolInfo
from client_lib.worker import zipapp_build
from server_stub.files.job_dirs import attempt_dir
from server_stub.runtimes import STACKS_S, Attempt, Observation, Sink
from server_stub.runtimes.checks import checked
from server_stub.runtimes.kube import doctor, pod_templates
from server_stub.runtimes.kube.api import (
    ApiError,
    ObjectWatch,
    call_in_thread,
    connect,
    default_namespace,
)
from server_stub.runtimes.kube.catalogue import ClusterCatalogue, file as catalogue_file
from server_stub.runtimes.kube.check import check
from server_stub.runtimes.kube.cluster import Cluster
from server_stub.runtimes.kube.gang import Gang
from server_stub.runtimes.kube.names import AttemptKey
from server_stub.runtimes.kube.objects import Record
from server_stub.runtimes.kube.observe.inventory import Workload
from server_stub.runtimes.kube.options import ClusterOptions
from server_stub.runtimes.kube.pytorchjob import PYTORCHJOB
from server_stub.runtimes.kube.queues import is_queued
from server_stub.runtimes.kube.render import masked, render, storage
from server_stub.runtimes.kube.trainjob import TRAINJOB
from server_stub.runtimes.tasks import Tasks
from server_stub.settings import Settings
from server_stub.worker_gateway.attempt import WorkerRegistry
from server_stub.worker_gateway.worker import StackDump

DISK_PAUSE_S = 5.0
KEPT_CATALOGUE = "catalogue.yaml"
"""Copy of the last valid catalogue, in the data directory."""
_UNREACHED = "pods of jobs can't reach this server: it has no worker_server_url"
_OLD_CATALOGUE = (
    "the file of the catalogue is not valid, and an earlier one is used; `client-lib doctor` has "
    "the error"
)
_REFUSED_TEMPLATES = "the cluster refuses the pod_template of {}; `client-lib doctor` has the error"
_LACKS = (
    "{} because this server lacks something in the cluster: rights, a namespace or an "
    "operator; `client-lib doctor` has it"
)
_CORRECT = (
    "correct the file until `client-lib server check FILE` finds no error, and start the server "
    "again"
)

_log = logging.getLogger(__name__)


class KubeRuntime:
    """Runs attempts in the namespaces of teams, or in the server's. It creates objects of one kind,
    and continues attempts whose objects are of another kind."""

    name = "kubernetes"

    def __init__(
        self, cluster: Cluster, catalogue_problem: str = "", namespaces: Collection[str] = ()
    ) -> None:
        """`cluster`: the cluster with the server's namespace. `catalogue_problem`: why an earlier
        catalogue is used; '': the newest one is. `namespaces`: namespaces of teams, in which an
        earlier server process may have left objects."""
        self._own = cluster.options.namespace
        self._of_teams = namespaces
        self._clusters = {self._own: cluster}
        self._catalogue_problem = catalogue_problem
        self._refused_templates: list[str] = []
        self._gangs: dict[AttemptKey, Gang] = {}
        self._tasks = Tasks(_log, "a task of the Kubernetes runtime failed")
        self._watches: list[ObjectWatch[Any]] = []
        self._sink: Sink = lambda _: None

    @property
    def _cluster(self) -> Cluster:
        return self._clusters[self._own]

    def _in(self, namespace: str | None) -> Cluster:
        """The namespace of an attempt. One that is new is watched from now on, so that jobs of a
        team that the users file no longer has are found again."""
        wanted = namespace or self._own
        if wanted not in self._clusters:
            self._clusters[wanted] = self._cluster.in_namespace(wanted)
            self._tasks.begin(self._watch(wanted))
        return self._clusters[wanted]

    # --- before anything runs

    def check(
        self, spec: JobSpec, owner: str, submitter: Submitter, namespace: str | None = None
    ) -> list[str]:
        return check(spec, owner, submitter, self._in(namespace).options)

    async def why_hidden(self, spec: JobSpec, owner: str, path: str) -> str | None:
        if storage.is_shared(path, storage.claims(spec, owner, self._cluster.options.catalogue)):
            return None
        return f"the workers of this server do not see the folder {path} of the submitter"

    def checkpoint_files(self, attempt: Attempt) -> None:
        del attempt

    def render(self, attempt: Attempt) -> Manifest:
        return Manifest(
            runtime=self.name,
            objects=masked(render(attempt, self._in(attempt.namespace).options, MASK)),
        )

    # --- life cycle

    async def start(self, sink: Sink) -> None:
        self._sink = sink
        await self._watch(self._own)
        for namespace in self._of_teams:
            self._in(namespace)  # begins with the kind that was found just now
        self._tasks.begin(self._try_templates())

    async def _try_templates(self) -> None:
        cluster = self._cluster
        try:
            refused = await call_in_thread(pod_templates.refused, cluster.api, cluster.options)
        except ApiError as error:
            _log.warning("the pod templates of the catalogue can't be tried: %s", error)
            return
        for name, why in refused.items():
            _log.error("the cluster refuses the pod_template of %s: %s", name, why)
        self._refused_templates = list(refused)

    async def _watch(self, namespace: str) -> None:
        await self._look_around(namespace)
        watches = self._clusters[namespace].watches(partial(self._workloads_listed, namespace))
        self._watches += watches
        for watch in watches:
            watch.start()

    async def _look_around(self, namespace: str) -> None:
        """Find out which kind of workload the cluster has, and if jobs may name a queue. Repeated,
        as an operator or a Kueue may be installed later."""
        cluster = self._clusters[namespace]
        try:
            if cluster.options.catalogue.job_kind == "auto":
                cluster = self._clusters[namespace] = await call_in_thread(cluster.with_kind_there)
            found = await call_in_thread(is_queued, cluster.api, cluster.kind, namespace)
        except ApiError as error:
            if error.status in (403, 404):
                _log.error(
                    "namespace %s takes no %s of this server: %s",
                    namespace,
                    cluster.kind.name,
                    error,
                )
            else:
                _log.warning(
                    "what namespace %s takes is unknown; the server asks again later: %s",
                    namespace,
                    error,
                )
            found = bool(cluster.options.kueue)
        self._clusters[namespace] = replace(cluster, options=replace(cluster.options, kueue=found))

    async def close(self) -> None:
        for watch in self._watches:
            watch.stop()
        self._cluster.api.close()
        await self._tasks.close()

    def _workloads_listed(self, namespace: str, kind: str, workloads: Sequence[Workload]) -> None:
        """Take the list over, and remove workloads whose attempt is recorded as ended: an earlier
        server process did not remove them, or this process had no rights to find them."""
        cluster = self._clusters[namespace]
        cluster.inventory.take_list(kind, workloads)
        self._tasks.begin(self._look_around(namespace))
        for workload in workloads:
            if workload.key not in self._gangs and not workload.deleting:
                self._tasks.begin(self._remove_if_ended(cluster, workload))

    async def _remove_if_ended(self, cluster: Cluster, workload: Workload) -> None:
        job_dir = cluster.options.settings.data_dir / "jobs" / workload.key.job_id
        folder = attempt_dir(job_dir, workload.key.attempt)
        known = await asyncio.to_thread(Record.read, folder, workload.key)
        if known.end is not None and known.uid in (None, workload.uid):
            try:
                objects = cluster.of_kind(workload.kind.name).objects
                await call_in_thread(objects.delete_workload, workload.name, workload.uid)
            except ApiError as error:  # the next list contains it again
                _log.warning("%s %s can't be removed: %s", workload.kind.name, workload.name, error)

    # --- attempts

    def submit(self, attempt: Attempt) -> None:
        key = AttemptKey(attempt.job_id, attempt.number)
        if key in self._gangs:
            return
        self._gangs[key] = Gang(attempt, self._in, self._sink)
        self._tasks.begin(self._to_its_end(key, attempt))

    async def _to_its_end(self, key: AttemptKey, attempt: Attempt) -> None:
        """Run the gang, and again after each error: a full disk of the server must not end a job on
        the cluster, and an attempt without a gang would keep its nodes for ever."""
        try:
            while True:
                gang = self._gangs[key]
                try:
                    await gang.run()
                    return
                except Exception as error:  # noqa: BLE001
                    unexpected = None if isinstance(error, OSError) else error
                    _log.error(
                        "job %s, attempt %d: %s",
                        attempt.job_name,
                        attempt.number,
                        error,
                        exc_info=unexpected,
                    )
                    why = (
                        "the server had an error in this attempt, and tries again: "
                        f"{type(error).__name__}: {error}"
                    )
                    self._sink(Observation(*key, "waiting", Reason.SERVER_ERROR, why, notes=(why,)))
                await asyncio.sleep(DISK_PAUSE_S)
                again = replace(attempt, never_started=False)
                self._gangs[key] = Gang(again, self._in, self._sink)
                if gang.stopped:
                    self._gangs[key].stop(attempt.spec.grace_s)
        finally:
            del self._gangs[key]

    def stop(self, job_id: str, attempt: int, grace_s: float, *, interrupt: bool = False) -> None:
        if gang := self._gangs.get(AttemptKey(job_id, attempt)):
            gang.stop(grace_s, interrupt=interrupt)

    def signs_of_life(self, job_id: str, attempt: int) -> Hashable:
        found = self._cluster.registry.find(job_id, attempt)
        return tuple(view.signs_of_life for view in found.views()) if found else ()

    async def stacks(self, job_id: str, attempt: int) -> list[StackDump]:
        if self._cluster.options.settings.worker_server_url is None:
            return [StackDump(0, [], _UNREACHED)]
        found = self._cluster.registry.find(job_id, attempt)
        return await found.stacks(STACKS_S) if found else []

    async def begin_session(
        self, job_id: str, attempt: int, request: Mapping[str, object]
    ) -> socket.socket:
        if self._cluster.options.settings.worker_server_url is None:
            raise Conflict(_UNREACHED)
        found = self._cluster.registry.find(job_id, attempt)
        if found is None:
            raise Conflict("its attempt has ended")
        return await found.begin_session(request)

    def instance_types(self) -> Sequence[InstanceType]:
        return self._cluster.options.catalogue.shown()

    def warm_pools(self) -> list[WarmPoolInfo]:
        return []

    def warning(self) -> str:
        waiting = sum(1 for gang in self._gangs.values() if gang.lacks)
        found = []
        if waiting:
            found.append(_LACKS.format("1 job waits" if waiting == 1 else f"{waiting} jobs wait"))
        if self._catalogue_problem:
            found.append(_OLD_CATALOGUE)
        if self._refused_templates:
            found.append(_REFUSED_TEMPLATES.format(", ".join(self._refused_templates)))
        return "; ".join(found)

    async def doctor(self) -> list[Check]:
        own, *others = [cluster.options for cluster in self._clusters.values()]
        found = await call_in_thread(doctor.checks, self._cluster.api, own, others)
        if self._catalogue_problem:
            found.append(checked("catalogue file", self._catalogue_problem, _CORRECT))
        fix = "check the API server, and the rights of this server's user"
        problems = [watch.problem for watch in self._watches if watch.problem]
        return [*found, *(checked("cluster", problem, fix) for problem in problems)]


def check_pod_templates(catalogue: ClusterCatalogue, settings: Settings) -> str:
    """See `pod_templates.check`; '': no instance type has a `pod_template`."""
    if not pod_templates.templated(catalogue):
        return ""
    return pod_templates.check(catalogue, settings, PYTORCHJOB)


def assemble(
    settings: Settings, registry: WorkerRegistry, namespaces: Collection[str]
) -> KubeRuntime:
    """Make the runtime; makes no request to the cluster. `namespaces`: namespaces of teams, beside
    the server's own.

    Raises InvalidRequest: a file is missing or wrong; ServerError: there is no usable kubeconfig.
    """
    catalogue, problem = catalogue_file.load_or_kept(
        settings.catalogue, settings.data_dir / KEPT_CATALOGUE
    )
    if problem:
        _log.error("%s", problem)
    namespace = settings.kube_namespace or default_namespace(
        settings.kubeconfig, settings.kube_context
    )
    chosen, other = (
        (TRAINJOB, PYTORCHJOB) if catalogue.job_kind == "trainjob" else (PYTORCHJOB, TRAINJOB)
    )
    try:
        server_ca = (
            settings.worker_server_ca.read_text() if settings.worker_server_ca is not None else None
        )
    except OSError as error:
        wrong = f"worker_server_ca={settings.worker_server_ca} can't be read: {error.strerror}"
        raise InvalidRequest(wrong) from error
    with tempfile.TemporaryDirectory() as folder:
        launcher = Path(folder) / "worker.pyz"
        zipapp_build.build(str(launcher))
        options = ClusterOptions(
            settings, chosen, catalogue, namespace, launcher.read_bytes(), server_ca
        )
    api = connect(settings.kubeconfig, settings.kube_context)
    return KubeRuntime(Cluster.of(api, options, registry, [other]), problem, namespaces)
