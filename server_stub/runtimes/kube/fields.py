"""What each field of the spec means on a cluster: honoured, refused, or named once in a notice. Pure.

`FIELDS` is complete (a test compares it with JobSpec), so that nothing is ever ignored in silence.
"""

from __future__ import annotations

from collections.abc import Callable

from client_lib.errors import InvalidRequest, NotSupported, TooLarge
from client_lib.spec.job import JobSpec, JobType
from client_lib.spec.wire import Submitter
from server_stub.runtimes import elastic, orders
from server_stub.runtimes.kube import policy, storage
from server_stub.runtimes.kube.catalogue import Catalogue
from server_stub.runtimes.kube.needs import Needs, needs, shm_is_cut
from server_stub.runtimes.kube.options import ClusterSettings
from server_stub.runtimes.orders import Fate

SPEC_MAX = 700 * 2**10
"""Bytes: it rides in a ConfigMap, which holds 1 MiB."""

FIELDS: dict[str, Fate] = {
    "script": Fate.HONOURED,
    "base_image": Fate.HONOURED,  # with a notice where the catalogue pulls another one
    "type": Fate.HONOURED,  # pytorch_elastic where pods reach the server, else refused
    "args": Fate.HONOURED,
    "flags": Fate.HONOURED,
    "env_variables": Fate.HONOURED,
    "secrets": Fate.HONOURED,
    "code": Fate.SERVICE,
    "working_dir": Fate.HONOURED,
    "warm": Fate.NAMED,
    "conda_env": Fate.HONOURED,
    "pytorch_use_env": Fate.HONOURED,
    "log_file": Fate.HONOURED,
    "checkpoint_dir": Fate.HONOURED,  # with a notice where it ends with the pod
    "outputs": Fate.HONOURED,  # where pods reach the server, else refused
    "requirements": Fate.HONOURED,
    "instance_type": Fate.HONOURED,
    "n_workers": Fate.HONOURED,
    "processes_per_worker": Fate.HONOURED,
    "gpus": Fate.REFUSED,
    "volumes": Fate.HONOURED,
    "shm_size_class": Fate.HONOURED,  # with a notice where it is more than half of the memory
    "tmp_storage": Fate.HONOURED,
    "include_nodes": Fate.HONOURED,
    "exclude_nodes": Fate.HONOURED,
    "internet": Fate.HONOURED,
    "region": Fate.NAMED,
    "priority_class": Fate.HONOURED,  # with a notice where the catalogue has none for it
    "queue_name": Fate.HONOURED,  # where there is a Kueue, else refused
    "allocation_name": Fate.NAMED,
    "max_retry": Fate.SERVICE,
    "stop_timer": Fate.SERVICE,
    "health_params": Fate.SERVICE,
    "grace_s": Fate.HONOURED,
    "elastic_min_workers": Fate.NAMED,
    "elastic_max_workers": Fate.NAMED,
    "elastic_max_restarts": Fate.NAMED,
    "name": Fate.SERVICE,
    "job_desc": Fate.SERVICE,
    "labels": Fate.SERVICE,
    "logs_dir": Fate.NAMED,
}

MEANS_NOTHING: dict[str, str] = {
    "warm": "every pod starts its own processes",
    "region": "the job runs on this server's cluster",
    "allocation_name": "capacity is shared by priority_class and queue_name",
    "elastic_min_workers": "only type 'pytorch_elastic' reads it",
    "elastic_max_workers": "only type 'pytorch_elastic' reads it",
    "elastic_max_restarts": "only type 'pytorch_elastic' reads it",
    "logs_dir": "read the logs with `client-lib logs`",
}


def check(spec: JobSpec, submitter: Submitter, cluster: ClusterSettings, catalogue: Catalogue) -> list[str]:
    """Notices for the submitter.

    Raises:
        NeverFits: more workers than a job may have.
        NotSupported, InvalidRequest, TooLarge: naming the field, its value and the way out.
    """
    _refuse(spec, cluster)
    orders.check_paths(spec, submitter.working_dir)
    found = needs(spec, catalogue)
    image(spec, catalogue)
    storage.asked_folders(spec, catalogue)
    if policy.wanted(spec, catalogue):
        policy.egress({}, cluster, catalogue)
    return [line for rule in _NOTICES if (line := rule(spec, found, cluster, catalogue))] + _nothing(spec)


def image(spec: JobSpec, catalogue: Catalogue) -> str:
    """What is pulled. Raises InvalidRequest: the job names none, and the catalogue neither."""
    asked = spec.base_image or catalogue.images.default
    if asked is None:
        raise InvalidRequest(
            "base_image is missing, and this server has no default",
            hint="any image with a python3 will do, such as pytorch/pytorch:2.8.0-cuda12.8-cudnn9-runtime",
        )
    return catalogue.images.resolve(asked)


def _refuse(spec: JobSpec, cluster: ClusterSettings) -> None:
    for rule in (_type, _gpus, _outputs, _master, _queue, _size):
        rule(spec, cluster)


def _type(spec: JobSpec, cluster: ClusterSettings) -> None:
    if spec.type is JobType.PYTORCH_ELASTIC and cluster.server_url is None:
        raise NotSupported(
            "type 'pytorch_elastic' needs a server that pods reach: it decides which lost worker goes on",
            hint="type='pytorch2' with max_retry starts the whole gang anew; the server's setting worker_server_url "
            "says how pods reach it",
        )
    elastic.refuse_command(spec)


def _gpus(spec: JobSpec, cluster: ClusterSettings) -> None:
    del cluster
    if spec.gpus is not None:
        raise NotSupported(
            f"gpus={spec.gpus} chooses among the GPUs of one machine, and a cluster hands them out itself",
            hint="instance_type says how many each worker gets",
        )


def _outputs(spec: JobSpec, cluster: ClusterSettings) -> None:
    if spec.outputs and cluster.server_url is None:
        raise NotSupported(
            f"outputs={spec.outputs} can't be kept: pods don't reach this server",
            hint="write results to a volume; the server's setting worker_server_url says how pods reach it",
        )


def _master(spec: JobSpec, cluster: ClusterSettings) -> None:
    del cluster
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if name in spec.environment() or name in spec.secrets:
            raise NotSupported(
                f"{name} can't be given on a cluster: the training operator sets it to the pod of worker 0",
                hint="leave it out; every process finds it in its environment",
            )


def _queue(spec: JobSpec, cluster: ClusterSettings) -> None:
    if spec.queue_name is not None and not cluster.kueue:
        raise NotSupported(
            f"queue_name={spec.queue_name!r}: this cluster has no Kueue that serves PyTorchJobs",
            hint="leave it out; its operator can install Kueue with the integration kubeflow.org/pytorchjob",
        )


def _size(spec: JobSpec, cluster: ClusterSettings) -> None:
    del cluster
    size = len(spec.model_dump_json(exclude_defaults=True))
    if size > SPEC_MAX:
        raise TooLarge(
            f"the job spec has {size} bytes; on a cluster at most {SPEC_MAX} travel to a pod",
            hint="hand data to the script in a file, not in arguments or variables",
        )


_Rule = Callable[[JobSpec, Needs, ClusterSettings, Catalogue], str]


def _other_image(spec: JobSpec, needs: Needs, cluster: ClusterSettings, catalogue: Catalogue) -> str:
    del needs, cluster
    pulled = image(spec, catalogue)
    return "" if spec.base_image in (None, pulled) else f"base_image={spec.base_image!r} is pulled as {pulled!r}"


def _without_gpus(spec: JobSpec, needs: Needs, cluster: ClusterSettings, catalogue: Catalogue) -> str:
    del spec, cluster, catalogue
    if needs.gpus or not needs.instance.gpus:
        return ""
    return f"instance_type={needs.instance.name!r} has GPUs, but type 'nogpu' uses none: the job runs on the CPU"


def _less_shm(spec: JobSpec, needs: Needs, cluster: ClusterSettings, catalogue: Catalogue) -> str:
    del cluster, catalogue
    if not shm_is_cut(spec, needs):
        return ""
    return (
        f"shm_size_class={spec.shm_size_class!r} is cut to {needs.shm_mib / 1024:.4g} GiB: /dev/shm counts in the "
        f"worker's memory, and is at most half of its {needs.memory_mib / 1024:.4g} GiB"
    )


def _no_priority(spec: JobSpec, needs: Needs, cluster: ClusterSettings, catalogue: Catalogue) -> str:
    del needs, cluster
    if "priority_class" not in spec.model_fields_set or spec.priority_class in catalogue.priority_classes:
        return ""
    return (
        f"priority_class={str(spec.priority_class)!r} has no effect here: this server's catalogue has no "
        "PriorityClass for it"
    )


def _lost_checkpoints(spec: JobSpec, needs: Needs, cluster: ClusterSettings, catalogue: Catalogue) -> str:
    del needs, cluster
    if spec.checkpoint_dir is None:
        lost = catalogue.checkpoints is None
        return "checkpoints end with their pod: this server's catalogue names no volume for them" if lost else ""
    if storage.is_on_volume(spec.checkpoint_dir, storage.claims(spec, catalogue)):
        return ""
    return f"checkpoint_dir={spec.checkpoint_dir!r} is on no volume of the pod: what is written there ends with it"


def _copies(spec: JobSpec, needs: Needs, cluster: ClusterSettings, catalogue: Catalogue) -> str:
    del cluster, catalogue
    is_command = spec.python_script is None and not orders.calls_function(spec)
    if not is_command or needs.processes == 1 or spec.processes_per_worker != "default":
        return ""
    return (
        f"the command is started {needs.processes} times on each worker, once per GPU; processes_per_worker=1 starts "
        "it once"
    )


def _experimental(spec: JobSpec, needs: Needs, cluster: ClusterSettings, catalogue: Catalogue) -> str:
    del needs, cluster, catalogue
    if spec.queue_name is None:
        return ""
    return f"queue_name={spec.queue_name!r}: Kueue decides when the job starts, and how to work with it is experimental"


def _out_of_reach(spec: JobSpec, needs: Needs, cluster: ClusterSettings, catalogue: Catalogue) -> str:
    del spec, needs, catalogue
    if cluster.server_url is not None:
        return ""
    return "pods don't reach this server: of a log that is written fast, lines may be missing, and no outputs are kept"


_NOTICES: list[_Rule] = [
    _other_image,
    _without_gpus,
    _less_shm,
    _no_priority,
    _lost_checkpoints,
    _copies,
    _experimental,
    _out_of_reach,
]


def _nothing(spec: JobSpec) -> list[str]:
    is_elastic = spec.type is JobType.PYTORCH_ELASTIC
    given = ((name, getattr(spec, name), why) for name, why in MEANS_NOTHING.items() if name in spec.model_fields_set)
    return [
        f"{name}={value!r} has no effect here: {why}"
        for name, value, why in given
        if value not in (None, "default", False) and not (is_elastic and name.startswith("elastic_"))
    ]
