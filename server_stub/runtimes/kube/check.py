"""Checks a job spec against a cluster: rejects what it can't do, and makes notices for the
submitter. Pure. `runtimes.fields` has the table of all fields."""

from collections.abc import Iterator

from client_lib.errors import NotSupported, TooLarge, Unavailable
from client_lib.spec.job import JobSpec, JobType
from client_lib.spec.request import Submitter
from server_stub.runtimes import fields
from server_stub.runtimes.kube.options import ClusterOptions
from server_stub.runtimes.kube.render import network_policy, pod, storage

SPEC_MAX = 700 * 2**10
"""Largest spec in bytes: it is sent in a ConfigMap, which holds 1 MiB."""


def check(spec: JobSpec, owner: str, submitter: Submitter, cluster: ClusterOptions) -> list[str]:
    """Notices for the submitter. Raises what `Runtime.check` raises, and TooLarge."""
    _check_fields(spec, cluster)
    size = len(spec.model_dump_json(exclude_defaults=True))
    if size > SPEC_MAX:
        raise TooLarge(
            f"the job spec has {size} bytes; on a cluster at most {SPEC_MAX} travel to a pod",
            hint="hand data to the script in a file, not in arguments or variables",
        )
    fields.check_command(spec)
    fields.check_paths(spec, submitter.working_dir)
    storage.tmp_gb(spec, cluster.catalogue)
    network_policy.rules(spec, {}, cluster)
    return [*_notices(spec, owner, cluster), *fields.ignored(spec, "kubernetes")]


def _check_fields(spec: JobSpec, cluster: ClusterOptions) -> None:
    kind = cluster.kind
    reached = cluster.settings.worker_server_url is not None
    setting = "the server's setting worker_server_url says how pods reach it"
    if spec.type is JobType.PYTORCH_ELASTIC and not reached:
        why = (
            "type 'pytorch_elastic' needs a server that pods reach: it decides which lost worker "
            "is replaced"
        )
        retry = "type='pytorch2' with max_retry restarts all workers after a failure"
        raise NotSupported(why, hint=f"{retry}; {setting}")
    if spec.outputs and not reached:
        why = f"outputs={spec.outputs} can't be kept: pods don't reach this server"
        raise NotSupported(why, hint=f"write results to a volume; {setting}")
    if spec.gpus is not None:
        why = (
            f"gpus={spec.gpus} chooses among the GPUs of one machine, and a cluster hands them "
            "out itself"
        )
        raise NotSupported(why, hint="instance_type says how many each worker gets")
    if spec.checkpoint_from is not None and cluster.catalogue.checkpoints is None:
        why = (
            "checkpoints end with their pods, as the catalogue of this server names no volume for "
            "them"
        )
        hint = "write checkpoints to a volume, with the same checkpoint_dir in both jobs"
        raise NotSupported(f"checkpoint_from={spec.checkpoint_from!r}: {why}", hint=hint)
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if name in spec.environment() or name in spec.secrets:
            why = (
                f"{name} can't be given on a cluster: the {kind.operator} sets it to the pod of "
                "worker 0"
            )
            raise NotSupported(why, hint="leave it out; every process finds it in its environment")
    if spec.queue_name is None or cluster.kueue or cluster.catalogue.gang.scheduler == "volcano":
        return
    asked = f"queue_name={spec.queue_name!r}"
    jobs = f"{kind.name}s of namespace {cluster.namespace}"
    if cluster.kueue is None:
        raise Unavailable(
            f"{asked}: the server is asking the cluster whether a Kueue takes {jobs}",
            hint="try again in a moment",
        )
    raise NotSupported(
        f"{asked}: no Kueue of this cluster takes {jobs}",
        hint="leave it out; its operator can install Kueue with the integration "
        f"{kind.kueue_framework}, and let Kueue's managedJobsNamespaceSelector select this "
        "namespace",
    )


def _notices(spec: JobSpec, owner: str, cluster: ClusterOptions) -> Iterator[str]:
    catalogue = cluster.catalogue
    need = cluster.catalogue.needs(spec)
    claims = storage.claims(spec, owner, catalogue)
    pulled = pod.image(spec, catalogue)
    if spec.base_image not in (None, pulled):
        yield f"base_image={spec.base_image!r} is pulled as {pulled!r}"
    if need.instance.gpus and not need.gpus:
        yield (
            f"instance_type={need.instance.name!r} has GPUs, but type 'nogpu' uses none: "
            f"{fields.ON_CPU}"
        )
    if need.shm_is_cut:
        yield (
            f"shm_size_class={spec.shm_size_class!r} is cut to {need.shm_mib / 1024:.4g} GiB: "
            "/dev/shm counts in the worker's memory, and is at most half of its "
            f"{need.memory_mib / 1024:.4g} GiB"
        )
    if (
        "priority_class" in spec.model_fields_set
        and spec.priority_class not in catalogue.priority_classes
    ):
        yield (
            f"priority_class={str(spec.priority_class)!r} has no effect here: this server's "
            "catalogue has no PriorityClass for it"
        )
    if spec.checkpoint_dir is None:
        if catalogue.checkpoints is None:
            yield "checkpoints end with their pod: this server's catalogue names no volume for them"
    elif not storage.is_on_volume(spec.checkpoint_dir, claims):
        yield (
            f"checkpoint_dir={spec.checkpoint_dir!r} is on no volume of the pod: what is written "
            "there ends with it"
        )
    if copies := fields.copies_notice(spec, need.processes):
        yield copies
    if cluster.settings.worker_server_url is None:
        yield (
            "pods don't reach this server: of a log that is written fast, lines may be missing, "
            "and no outputs are kept"
        )
