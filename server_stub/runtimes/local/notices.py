"""What each field of the spec means on one machine: honoured, refused, or named once in a notice. Pure.

`FIELDS` is complete (a test compares it with JobSpec), so that nothing is ever ignored in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from client_lib.spec.job import JobSpec, JobType
from client_lib.spec.wire import Submitter
from server_stub.instances import family_of
from server_stub.runtimes import elastic
from server_stub.runtimes.local.devices import Gpu
from server_stub.runtimes.local.machine import Machine
from server_stub.runtimes.local.needs import Needs
from server_stub.runtimes.orders import Fate

FIELDS: dict[str, Fate] = {
    "script": Fate.HONOURED,
    "base_image": Fate.NAMED,
    "type": Fate.HONOURED,
    "args": Fate.HONOURED,
    "flags": Fate.HONOURED,
    "env_variables": Fate.HONOURED,
    "secrets": Fate.HONOURED,
    "code": Fate.SERVICE,
    "working_dir": Fate.HONOURED,
    "warm": Fate.HONOURED,
    "conda_env": Fate.HONOURED,
    "pytorch_use_env": Fate.HONOURED,
    "log_file": Fate.HONOURED,
    "checkpoint_dir": Fate.HONOURED,
    "outputs": Fate.HONOURED,
    "requirements": Fate.HONOURED,
    "instance_type": Fate.HONOURED,  # with a notice about what isn't enforced
    "n_workers": Fate.HONOURED,
    "processes_per_worker": Fate.HONOURED,
    "gpus": Fate.HONOURED,
    "volumes": Fate.HONOURED,  # the path must be this machine's own; see `volumes`
    "shm_size_class": Fate.NAMED,
    "tmp_storage": Fate.NAMED,
    "include_nodes": Fate.NAMED,
    "exclude_nodes": Fate.NAMED,
    "internet": Fate.NAMED,
    "region": Fate.NAMED,
    "priority_class": Fate.HONOURED,
    "queue_name": Fate.NAMED,
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
    "shm_size_class": "/dev/shm is this machine's own",
    "tmp_storage": "/tmp is this machine's own",
    "include_nodes": "there is one machine, this one",
    "exclude_nodes": "there is one machine, this one",
    "internet": "the job reaches what this machine reaches",
    "region": "the job runs on this machine",
    "queue_name": "there is one queue, by priority_class",
    "allocation_name": "there is one machine, this one",
    "elastic_min_workers": "only type 'pytorch_elastic' reads it",  # and then there is no notice
    "elastic_max_workers": "only type 'pytorch_elastic' reads it",
    "elastic_max_restarts": "only type 'pytorch_elastic' reads it",
    "logs_dir": "read the logs with `client-lib logs`",
}


def refuse(spec: JobSpec) -> None:
    """Raises NotSupported for what this version can't do, by name."""
    elastic.refuse_command(spec)


def notices(spec: JobSpec, submitter: Submitter, needs: Needs, machine: Machine, gpus: Sequence[Gpu]) -> list[str]:
    """One sentence for each field that is read otherwise here than on a cluster."""
    lines = [_image(spec, submitter), *_nothing(spec), *_size(spec, needs, machine, gpus), _copies(spec, needs)]
    return [line for line in lines if line]


def _nothing(spec: JobSpec) -> list[str]:
    elastic = spec.type is JobType.PYTORCH_ELASTIC
    set_here = spec.model_fields_set
    given = ((name, getattr(spec, name), why) for name, why in MEANS_NOTHING.items() if name in set_here)
    return [
        f"{name}={_shown(value)} has no effect here: {why}"
        for name, value, why in given
        if value not in (None, "default") and not (elastic and name.startswith("elastic_"))
    ]


def _shown(value: object) -> str:
    return repr(str(value)) if isinstance(value, str) else repr(value)


def _image(spec: JobSpec, submitter: Submitter) -> str:
    if spec.base_image is None:
        return ""
    return f"base_image={spec.base_image!r} is not pulled here: the job runs with {_runs_with(spec, submitter)}"


def _runs_with(spec: JobSpec, submitter: Submitter) -> str:
    if spec.python_script is None:
        return "the programs of this machine"
    if spec.conda_env is not None:
        return f"the python of conda_env={spec.conda_env!r}"
    return submitter.python or "the server's own python, as the request names none"


_Rule = Callable[[JobSpec, Needs, Machine, Sequence[Gpu]], str]


def _size(spec: JobSpec, needs: Needs, machine: Machine, gpus: Sequence[Gpu]) -> list[str]:
    rules: list[_Rule] = [_runs_on_cpu, _too_few_gpus, _other_cards, _not_enforced]
    return [rule(spec, needs, machine, gpus) for rule in rules]


def _runs_on_cpu(spec: JobSpec, needs: Needs, machine: Machine, gpus: Sequence[Gpu]) -> str:
    del machine
    if needs.size is None or not needs.size.gpus or needs.wants_gpus:
        return ""
    if spec.type is JobType.NOGPU:
        return f"instance_type={needs.size.name!r} has GPUs, but type 'nogpu' uses none: the job runs on the CPU"
    why = "this machine has no GPU" if not gpus else "the submitter may use no GPU of this machine"
    return (
        f"instance_type={needs.size.name!r} asks for {needs.size.gpus} GPUs per worker, and {why}: "
        f"the job runs on the CPU, {_processes(needs.processes_with(0))} per worker"
    )


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"


def _too_few_gpus(spec: JobSpec, needs: Needs, machine: Machine, gpus: Sequence[Gpu]) -> str:
    del machine, gpus
    if needs.size is not None or needs.wants_gpus or not needs.allowed or spec.type is JobType.NOGPU:
        return ""
    return (
        f"n_workers={needs.workers} can't share {len(needs.allowed)} GPUs, one each at least: the job runs on the CPU"
    )


def _other_cards(spec: JobSpec, needs: Needs, machine: Machine, gpus: Sequence[Gpu]) -> str:
    del spec, machine
    if needs.size is None or not needs.size.gpus or not needs.wants_gpus:
        return ""
    names = sorted({gpu.name for gpu in gpus if gpu.index in needs.allowed})
    if needs.size.family in {family_of(name) for name in names}:
        return ""
    return f"instance_type={needs.size.name!r}: the GPUs of this machine are {', '.join(names)}"


def _not_enforced(spec: JobSpec, needs: Needs, machine: Machine, gpus: Sequence[Gpu]) -> str:
    del gpus
    if not needs.memory_gib or needs.size is None:
        return ""
    line = (
        f"instance_type={needs.size.name!r}: {needs.size.memory_gib:g} GiB of memory per worker are counted when the "
        "job is admitted, and not enforced"
    )
    if needs.size.memory_gib * spec.n_workers > machine.memory_gib:
        line += f"; that is more than the {machine.memory_gib:.0f} GiB of this machine, so it counts as all of it"
    return line


def _copies(spec: JobSpec, needs: Needs) -> str:
    if spec.python_script is not None or spec.processes_per_worker != "default":
        return ""
    copies = needs.processes_with(needs.gpus or (len(needs.allowed) // needs.workers if needs.gpus is None else 0))
    if copies == 1:
        return ""
    return f"the command is started {copies} times on each worker, once per GPU; processes_per_worker=1 starts it once"
