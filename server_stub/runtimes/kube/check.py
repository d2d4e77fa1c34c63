"""Checks a job spec against a cluster: rejects what it can't do, and makes notices for the submitter. Pure.

`runtimes.fields` has the table of all fields.
"""

from __future__ import annotations

from dataclasses import dataclass

from client_lib.errors import NotSupported, TooLarge, Unavailable
from client_lib.spec.job import JobSpec, JobType
from client_lib.spec.request import Submitter
from server_stub.runtimes import fields
from server_stub.runtimes.kube.catalogue.needs import Needs, needs, shm_is_cut
from server_stub.runtimes.kube.render import network_policy, storage
from server_stub.runtimes.kube.render.pod import image
from server_stub.runtimes.kube.workload import ClusterOptions

SPEC_MAX = 700 * 2**10
"""Largest spec in bytes: it is sent in a ConfigMap, which holds 1 MiB."""


@dataclass(frozen=True)
class _Job:
    """A spec and the cluster that it is checked against."""

    spec: JobSpec
    owner: str
    cluster: ClusterOptions

    @property
    def needs(self) -> Needs:
        return needs(self.spec, self.cluster.catalogue)


def check(spec: JobSpec, owner: str, submitter: Submitter, cluster: ClusterOptions) -> list[str]:
    """Notices for the submitter.

    Raises:
        NeverFits: more workers than a job may have.
        NotSupported, InvalidRequest, TooLarge: naming the field, its value and the way out.
        Unavailable: what decides this is not known yet.
    """
    job, catalogue = _Job(spec, owner, cluster), cluster.catalogue
    for reject in (_type, _gpus, _outputs, _checkpoints, _own_variables, _queue, _size):
        reject(job)
    fields.check_command(spec)
    fields.check_paths(spec, submitter.working_dir)
    needs(spec, catalogue)
    image(spec, catalogue)
    storage.tmp_folders(spec, catalogue)
    storage.claims(spec, owner, catalogue)
    network_policy.policy(spec, {}, cluster)
    return [line for notice in _NOTICES if (line := notice(job))] + fields.ignored(spec, "kubernetes")


# --- what a cluster can't do


def _type(job: _Job) -> None:
    if job.spec.type is JobType.PYTORCH_ELASTIC and job.cluster.settings.worker_server_url is None:
        raise NotSupported(
            "type 'pytorch_elastic' needs a server that pods reach: it decides which lost worker is replaced",
            hint="type='pytorch2' with max_retry restarts all workers after a failure; the server's setting "
            "worker_server_url says how pods reach it",
        )


def _gpus(job: _Job) -> None:
    if job.spec.gpus is not None:
        raise NotSupported(
            f"gpus={job.spec.gpus} chooses among the GPUs of one machine, and a cluster hands them out itself",
            hint="instance_type says how many each worker gets",
        )


def _outputs(job: _Job) -> None:
    if job.spec.outputs and job.cluster.settings.worker_server_url is None:
        raise NotSupported(
            f"outputs={job.spec.outputs} can't be kept: pods don't reach this server",
            hint="write results to a volume; the server's setting worker_server_url says how pods reach it",
        )


def _checkpoints(job: _Job) -> None:
    if job.spec.checkpoint_from is not None and job.cluster.catalogue.checkpoints is None:
        raise NotSupported(
            f"checkpoint_from={job.spec.checkpoint_from!r}: checkpoints end with their pods, as the catalogue of this "
            "server names no volume for them",
            hint="write checkpoints to a volume, with the same checkpoint_dir in both jobs",
        )


def _own_variables(job: _Job) -> None:
    for name in job.cluster.kind.own_variables:
        if name in job.spec.environment() or name in job.spec.secrets:
            raise NotSupported(
                f"{name} can't be given on a cluster: the {job.cluster.kind.operator} sets it to the pod of worker 0",
                hint="leave it out; every process finds it in its environment",
            )


def _queue(job: _Job) -> None:
    kind = job.cluster.kind
    volcano = job.cluster.settings.gang_scheduler == "volcano"
    if job.spec.queue_name is None or job.cluster.kueue or volcano:
        return
    if job.cluster.kueue is None:
        raise Unavailable(
            f"queue_name={job.spec.queue_name!r}: the server is asking the cluster whether a Kueue takes {kind.name}s "
            f"of namespace {job.cluster.namespace}",
            hint="try again in a moment",
        )
    raise NotSupported(
        f"queue_name={job.spec.queue_name!r}: no Kueue of this cluster takes {kind.name}s of namespace "
        f"{job.cluster.namespace}",
        hint=f"leave it out; its operator can install Kueue with the integration {kind.kueue_framework}, and let "
        "Kueue's managedJobsNamespaceSelector select this namespace",
    )


def _size(job: _Job) -> None:
    size = len(job.spec.model_dump_json(exclude_defaults=True))
    if size > SPEC_MAX:
        raise TooLarge(
            f"the job spec has {size} bytes; on a cluster at most {SPEC_MAX} travel to a pod",
            hint="hand data to the script in a file, not in arguments or variables",
        )


# --- notices: empty if there is nothing to report


def _other_image(job: _Job) -> str:
    asked, pulled = job.spec.base_image, image(job.spec, job.cluster.catalogue)
    return "" if asked in (None, pulled) else f"base_image={asked!r} is pulled as {pulled!r}"


def _without_gpus(job: _Job) -> str:
    if job.needs.gpus or not job.needs.instance.gpus:
        return ""
    return f"instance_type={job.needs.instance.name!r} has GPUs, but type 'nogpu' uses none: {fields.ON_CPU}"


def _less_shm(job: _Job) -> str:
    if not shm_is_cut(job.spec, job.needs):
        return ""
    return (
        f"shm_size_class={job.spec.shm_size_class!r} is cut to {job.needs.shm_mib / 1024:.4g} GiB: /dev/shm counts in "
        f"the worker's memory, and is at most half of its {job.needs.memory_mib / 1024:.4g} GiB"
    )


def _no_priority(job: _Job) -> str:
    asked = job.spec.priority_class
    if "priority_class" not in job.spec.model_fields_set or asked in job.cluster.catalogue.priority_classes:
        return ""
    return f"priority_class={str(asked)!r} has no effect here: this server's catalogue has no PriorityClass for it"


def _lost_checkpoints(job: _Job) -> str:
    spec, catalogue = job.spec, job.cluster.catalogue
    if spec.checkpoint_dir is None:
        lost = catalogue.checkpoints is None
        return "checkpoints end with their pod: this server's catalogue names no volume for them" if lost else ""
    if storage.is_on_volume(spec.checkpoint_dir, storage.claims(spec, job.owner, catalogue)):
        return ""
    return f"checkpoint_dir={spec.checkpoint_dir!r} is on no volume of the pod: what is written there ends with it"


def _copies(job: _Job) -> str:
    return fields.copies_notice(job.spec, job.needs.processes)


def _unreachable(job: _Job) -> str:
    if job.cluster.settings.worker_server_url is not None:
        return ""
    return "pods don't reach this server: of a log that is written fast, lines may be missing, and no outputs are kept"


_NOTICES = (_other_image, _without_gpus, _less_shm, _no_priority, _lost_checkpoints, _copies, _unreachable)
