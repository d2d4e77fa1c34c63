"""The support of each field of the job spec by each runtime, and the checks that
all runtimes share. Pure.
"""

import re
from typing import NamedTuple

from client_lib.errors import InvalidRequest, NotSupported
from client_lib.spec.job import JobSpec, JobType

ON_CPU = "the job runs on the CPU"
"""Part of each notice about a job that asks for GPUs and gets none."""
_FUNCTION = re.compile(r"\w+\(\)")  # a function, named in place of the script


class Row(NamedTuple):
    """The reasons why a field has no effect on a runtime, each for a notice. None: the field has an
    effect there, or a rule of the runtime refuses the field or makes its own notice."""

    local: str | None = None
    kubernetes: str | None = None


_EVERYWHERE = Row()
_SERVICE = Row()  # the service uses the field, in the same way for every runtime
_ONE_MACHINE = Row(local="there is one machine, this one")
_ELASTIC = Row(*["only type 'pytorch_elastic' reads it"] * 2)  # jobs of that type get no notice

# complete (a test compares it with JobSpec), so that no field is ignored without a notice
FIELDS: dict[str, Row] = {
    "script": _EVERYWHERE,
    # local: a notice names the interpreter; kubernetes: a notice if another one is pulled
    "base_image": _EVERYWHERE,
    "type": _EVERYWHERE,  # kubernetes: pytorch_elastic only if pods reach the server
    "args": _EVERYWHERE,
    "flags": _EVERYWHERE,
    "env_variables": _EVERYWHERE,
    "secrets": _EVERYWHERE,
    "code": _SERVICE,
    "working_dir": _EVERYWHERE,
    "warm": Row(kubernetes="every pod starts its own processes"),
    "observe": _EVERYWHERE,
    "metrics": _EVERYWHERE,
    "conda_env": _EVERYWHERE,
    "pytorch_use_env": _EVERYWHERE,
    "log_file": _EVERYWHERE,
    "checkpoint_dir": _EVERYWHERE,  # kubernetes: with a notice if it ends with the pod
    # kubernetes: only if the catalogue has a volume for checkpoints
    "checkpoint_from": _EVERYWHERE,
    "checkpoint_params": _EVERYWHERE,  # keep: only with observe
    "outputs": _EVERYWHERE,  # kubernetes: only if pods reach the server
    "requirements": _EVERYWHERE,
    "setup": _EVERYWHERE,
    "instance_type": _EVERYWHERE,  # local: with a notice about sizes that are not enforced
    "n_workers": _EVERYWHERE,
    "processes_per_worker": _EVERYWHERE,
    "gpus": _EVERYWHERE,  # kubernetes: refused
    "volumes": _EVERYWHERE,  # local: the path must be this machine's own
    "shm_size_class": Row(local="/dev/shm is this machine's own"),
    "tmp_storage": Row(local="/tmp is this machine's own"),
    "include_nodes": _ONE_MACHINE,
    "exclude_nodes": _ONE_MACHINE,
    "internet": Row(local="the job reaches what this machine reaches"),
    "region": Row("the job runs on this machine", "the job runs on this server's cluster"),
    "priority_class": _EVERYWHERE,  # kubernetes: with a notice if the catalogue has none for it
    # kubernetes: only with a Kueue
    "queue_name": Row(local="there is one queue, by priority_class"),
    "allocation_name": Row(
        _ONE_MACHINE.local, "capacity is shared by priority_class and queue_name"
    ),
    "after": _EVERYWHERE,  # the service waits; a runtime copies the outputs into each worker
    "max_retry": _SERVICE,
    "retry_on": _SERVICE,
    "retry_reset_steps": _SERVICE,
    "max_infrastructure_retry": _SERVICE,
    "stop_timer": _SERVICE,
    "health_params": _SERVICE,
    "hang_action": _SERVICE,
    "alarm": _SERVICE,
    "preflight_check": _EVERYWHERE,
    "smoke": _SERVICE,
    "notify": _SERVICE,
    "grace_s": _EVERYWHERE,
    "elastic_min_workers": _ELASTIC,
    "elastic_max_workers": _ELASTIC,
    "elastic_max_restarts": _ELASTIC,
    "name": _SERVICE,
    "job_desc": _SERVICE,
    "labels": _SERVICE,
    "logs_dir": Row(*["read the logs with `client-lib logs`"] * 2),
}


def ignored(spec: JobSpec, runtime: str) -> list[str]:
    """Notices for the fields that the job sets and that have no effect on this runtime."""
    is_elastic = spec.type is JobType.PYTORCH_ELASTIC
    notices = []
    for name, row in FIELDS.items():
        if name not in spec.model_fields_set:  # most are not: this runs at each submit
            continue
        reason: str | None = getattr(row, runtime)
        value = getattr(spec, name)
        unset = value in (None, "default") or (name == "warm" and not value)
        if reason is None or unset or (is_elastic and row is _ELASTIC):
            continue
        # an enum's own repr would not be what the user wrote
        shown = str(value) if isinstance(value, str) else value
        notices.append(f"{name}={shown!r} has no effect here: {reason}")
    if spec.preflight_check and not has_preflight(spec):
        notices.append(
            "preflight_check=True has no effect here: it needs ranks that are started as a Python "
            "script"
        )
    return notices


def has_preflight(spec: JobSpec) -> bool:
    """True if the machines are checked before the script: a command may have no Python,
    and an agent starts ranks.
    """
    return (
        spec.preflight_check and not is_command(spec) and spec.type is not JobType.PYTORCH_ELASTIC
    )


def is_command(spec: JobSpec) -> bool:
    """True if the job starts a command, and neither a Python script nor a function."""
    return spec.python_script is None and _FUNCTION.fullmatch(spec.script) is None


def check_command(spec: JobSpec) -> None:
    """Raises NotSupported: a type that starts Python scripts alone, with a command."""
    if spec.type is JobType.PYTORCH_ELASTIC and is_command(spec):
        raise NotSupported(
            f"type 'pytorch_elastic' starts a .py file, and script={spec.script!r} is a command",
            hint="type='binary' starts a command; it may be torchrun itself",
        )


def check_paths(spec: JobSpec, working_dir: str | None) -> None:
    """Raises InvalidRequest: a path is relative, and the request names no
    folder that it is relative to.
    """
    if working_dir is not None:
        return
    relative = {
        "script": spec.python_script,
        "working_dir": spec.working_dir,
        "checkpoint_dir": spec.checkpoint_dir,
    }
    for name, path in relative.items():
        if path is not None and not path.startswith(("/", "~/")):
            raise InvalidRequest(
                f"{name}={path!r} is relative, and the request names no folder to start from",
                hint="give an absolute path, or submitter.working_dir",
            )


def copies_notice(spec: JobSpec, processes: int) -> str:
    """Notice for a command that each worker starts `processes` times; empty if that is
    once, or as often as asked.
    """
    if not is_command(spec) or spec.processes_per_worker != "default" or processes == 1:
        return ""
    return (
        f"the command is started {processes} times on each worker, once per GPU; "
        "processes_per_worker=1 starts it once"
    )


class WantedVolume(NamedTuple):
    """A volume that a job names, and where the job wants it."""

    name: str
    path: str
    read_only: bool


_VOLUME = re.compile(r"(?P<name>[^:]+):(?P<path>/[^:]*)(?P<read_only>:ro)?")


def parse_volume(volume: str) -> WantedVolume:
    """Read `name:path[:ro]`. Raises InvalidRequest: it has another form."""
    found = _VOLUME.fullmatch(volume)
    if found is None:
        raise InvalidRequest(f"volume {volume!r} is not of the form name:/path or name:/path:ro")
    return WantedVolume(found["name"], found["path"], found["read_only"] is not None)
