"""A line of `accelerate launch` and its configuration file as fields of a job. Pure.

num_processes is the total, as accelerate counts. `accelerate_variables` has what the library reads from its
environment. Every option and every key of the file stands in a table, and tests compare with accelerate 1.15: its
parser, and commands/config/config_args.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from client_lib.errors import InvalidRequest, NotSupported
from client_lib.launch_lines import accelerate_variables as variables
from client_lib.launch_lines import lines
from client_lib.launch_lines.lines import LaunchLine, Machine, OptionTable, dropped, split, what_runs, whole_number

LAUNCHER = "accelerate launch"

DROPPED = lines.by_name(
    {
        lines.ONE_SUBMIT: "machine-rank",
        lines.RENDEZVOUS: "main-process-ip main-process-port same-network rdzv-backend rdzv-conf mpirun-hostfile",
        lines.LOGS: "tee log-dir",
        lines.PROGRAM: "role monitor-interval quiet",
        lines.TPU: "main-training-function downcast-bf16 vm env no-tpu-cluster tpu-use-sudo",
    }
)
_PLUGIN = "build it in the script: Accelerator({}); its processes start as any others"
_NO_TPU = "jobs run on GPUs or the CPU"
_NO_SAGEMAKER = "SageMaker is another service; leave the option out"
REFUSED: dict[str, str] = {
    "use-deepspeed": _PLUGIN.format("deepspeed_plugin=DeepSpeedPlugin(...)"),
    "use-megatron-lm": _PLUGIN.format("megatron_lm_plugin=MegatronLMPlugin(...)"),
    "use-parallelism-config": _PLUGIN.format("parallelism_config=ParallelismConfig(...)"),
    **lines.by_name({_NO_TPU: "tpu tpu-cluster", _NO_SAGEMAKER: "aws-access-key-id aws-secret-access-key"}),
    "help": "`client-lib submit --help` lists the options of a job",
}
_INERT = ("deepspeed-", "megatron-lm-", "parallelism-config-", "zero", "offload-", "gradient-")
"""Families of options that accelerate reads only with a --use-... that is refused here."""
_READ = frozenset({"config-file", "num-processes", "num-machines", "gpu-ids", "max-restarts"})
_READ_FLAGS = frozenset({"cpu", "multi-gpu", "module", "no-python"})

_DROPPED_FLAGS = frozenset({"same-network", "quiet", "downcast-bf16", "no-tpu-cluster", "tpu-use-sudo"})
_REFUSED_FLAGS = REFUSED.keys() - {"aws-access-key-id", "aws-secret-access-key"}
_FLAGS = _READ_FLAGS | variables.FLAGS | _DROPPED_FLAGS | _REFUSED_FLAGS
_ONE_OF = ("cpu", "multi-gpu", "tpu", "use-deepspeed", "use-fsdp")

TABLE = OptionTable(
    LAUNCHER,
    flags=_FLAGS,
    valued=(_READ | variables.VALUED | DROPPED.keys() | REFUSED.keys()) - _FLAGS,
    families=_INERT,
    short={"m": "module", "q": "quiet", "t": "tee", "h": "help"},
    abbreviations=False,  # as accelerate's own parser
)


def read(words: Sequence[str], machine: Machine, python: str | None) -> LaunchLine:
    """`python`: the interpreter that the line names.

    Raises InvalidRequest or NotSupported: see `client_lib.launch_lines.read`.
    """
    line = split(words, TABLE)
    given = line.given
    _check_paradigm(given)
    file = _file(given, machine)
    config = _settings(file)
    counted, given_by = _counted(given, config)
    fsdp, settings = _is_fsdp(given, config), {**config, **given}
    variables_set = variables.of(settings, fsdp=fsdp, line=given)
    inert = _without_effect(file, fsdp=fsdp, precision=variables.precision(settings))
    fields = what_runs(
        line.rest, LAUNCHER, module="module" in given, no_python="no-python" in given, python=python or "python"
    )
    return LaunchLine(
        LAUNCHER,
        {**fields, **counted, **({"env_variables": variables_set} if variables_set else {})},
        {"type": "nogpu"} if "cpu" in given else {},
        {**given_by, "env_variables": f"the {LAUNCHER} line"},
        [*dropped(given, DROPPED), *dropped(inert, inert, "{} of " + FILE)],
        python,
    )


def _check_paradigm(given: Mapping[str, str]) -> None:
    chosen = [f"--{name}" for name in _ONE_OF if name in given]
    if len(chosen) > 1:
        raise InvalidRequest(f"{LAUNCHER}: {' and '.join(chosen)} exclude each other", hint="keep one of them")
    for name in given.keys() & REFUSED.keys():
        raise NotSupported(f"{LAUNCHER} --{name} is not supported here", hint=REFUSED[name])


def _file(given: Mapping[str, str], machine: Machine) -> Mapping[str, Any]:
    """The content of the file. With --cpu accelerate reads only a file that is named."""
    path = given.get("config-file")
    if path is None and "cpu" in given:
        return {}
    content = machine.accelerate_config(path)
    _check_place(content, given)
    return content


def _is_fsdp(given: Mapping[str, str], config: Mapping[str, Any]) -> bool:
    """The line's own choice wins over the file's; --cpu turns it off."""
    if "cpu" in given or "multi-gpu" in given:
        return False
    return "use-fsdp" in given or str(config.get("distributed-type")) == "FSDP"


def _counted(given: Mapping[str, str], config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The fields that hold numbers, and the words that say each."""
    fields: dict[str, Any] = {}
    given_by: dict[str, str] = {}
    total, machines = (_number(name, given, config) for name in ("num-processes", "num-machines"))
    if total or machines:
        fields["n_workers"] = machines or 1
        given_by["n_workers"] = (
            _where("num-machines", given, config) if machines else f"{LAUNCHER} without --num_machines"
        )
    if total:
        fields["processes_per_worker"] = _share(total, machines or 1)
        given_by["processes_per_worker"] = _where("num-processes", given, config)
    indices = str(given.get("gpu-ids", config.get("gpu-ids", "all")))
    if indices != "all":
        fields["gpus"] = [whole_number("--gpu_ids", index.strip(), 0) for index in indices.split(",")]
        given_by["gpus"] = _where("gpu-ids", given, config)
    if "max-restarts" in given:
        fields["max_retry"] = whole_number("--max_restarts", given["max-restarts"], 0)
        given_by["max_retry"] = _where("max-restarts", given, config)
    return fields, given_by


def _number(name: str, given: Mapping[str, str], config: Mapping[str, Any]) -> int | None:
    if name in given:
        return whole_number(f"--{name}", given[name], 1)
    if config.get(name) == -1:
        raise InvalidRequest(f"accelerate's config file leaves {name.replace('-', '_')} open", hint=f"give --{name}")
    if name in config:
        return whole_number(f"{name} of accelerate's config file", str(config[name]), 1)
    return None


def _share(total: int, machines: int) -> int:
    if total % machines:
        raise InvalidRequest(
            f"--num_processes {total} is the total, and {machines} machines can't share it evenly",
            hint=f"write --num_processes {max(machines, total - total % machines)}",
        )
    return total // machines


def _where(name: str, given: Mapping[str, str], config: Mapping[str, Any]) -> str:
    option = name.replace("-", "_")
    return f"--{option} {given[name]}" if name in given else f"{option}: {config[name]} of accelerate's config file"


# --- the configuration file: its settings by the names of the options, and its keys without effect

FILE = "accelerate's config file"

FILE_READ = frozenset(
    {"compute_environment", "distributed_type", "num_processes", "num_machines", "gpu_ids", "mixed_precision", "fp16"}
    | {"use_cpu", "debug", "enable_cpu_affinity", "dynamo_backend"}
)
SECTIONS: dict[str, tuple[str, Collection[str], str]] = {
    # key: (prefix of its options, those options, who reads it)
    "fsdp_config": ("fsdp_", variables.FSDP, "distributed_type: FSDP"),
    "fp8_config": ("fp8_", {*variables.FP8, variables.FP8_LINEAR}, "mixed_precision: fp8"),
    "dynamo_config": ("dynamo_", {*variables.DYNAMO, "dynamo-backend"}, ""),
}
FILE_DROPPED = lines.by_name(
    {
        lines.ONE_SUBMIT: "machine_rank",
        lines.RENDEZVOUS: "main_process_ip main_process_port rdzv_backend same_network mpirun_config",
        lines.TPU: "main_training_function downcast_bf16 commands command_file "
        "tpu_name tpu_zone tpu_vm tpu_env tpu_use_cluster tpu_use_sudo",
        "only distributed_type: DEEPSPEED reads it": "deepspeed_config",
        "only distributed_type: MEGATRON_LM reads it": "megatron_lm_config",
        "the line has an option that excludes it": "parallelism_config",  # else it is refused
    }
)
_USUAL = {"rdzv_backend": "static", "main_training_function": "main", "same_network": True}
"""Values that `accelerate config` writes into each file."""
_UNKNOWN = "accelerate has no such setting, or a newer one has it"


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            found |= {option: inner for _, option, inner in _inner(name, value)}
        else:
            found[_dashed(name)] = value
    if _is_fp16(config):
        found["mixed-precision"] = "fp16"
    return {name: value for name, value in found.items() if value is not None}


def _inner(section: str, values: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Key, option and value of each setting in a section."""
    prefix = SECTIONS[section][0] if section in SECTIONS else ""
    for key, value in values.items():
        yield f"{section}.{key}", _dashed(key if key.startswith(prefix) else prefix + key), value


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _is_fp16(config: Mapping[str, Any]) -> bool:
    """True if the older key `fp16` is on, and the newer one is missing."""
    return bool(config.get("fp16")) and "mixed_precision" not in config


def _check_place(config: Mapping[str, Any], given: Mapping[str, str]) -> None:
    """Raises NotSupported: the file asks for a service or library that does not exist here. `given`: the options of the
    line."""
    if str(config.get("compute_environment", "LOCAL_MACHINE")) != "LOCAL_MACHINE":
        raise NotSupported(
            f"{FILE} asks for compute_environment={config['compute_environment']}",
            hint="give another file with --config_file",
        )
    if {"multi-gpu", "use-fsdp"} & given.keys():
        return
    kinds = {"DEEPSPEED": "use-deepspeed", "MEGATRON_LM": "use-megatron-lm", "XLA": "tpu", "TPU": "tpu"}
    kind = kinds.get(str(config.get("distributed_type")))
    if kind:
        raise NotSupported(
            f"{FILE} asks for distributed_type={config['distributed_type']}, and that is not supported here",
            hint=REFUSED[kind],
        )
    if config.get("parallelism_config"):
        raise NotSupported(
            f"{FILE} has a parallelism_config, and that is not supported here", hint=REFUSED["use-parallelism-config"]
        )


def _without_effect(config: Mapping[str, Any], *, fsdp: bool, precision: str) -> dict[str, str]:
    """Keys that have no effect, with the reason for each. Keys with their usual value are left out."""
    reasons: dict[str, str] = {}
    in_use = {"fsdp_config": fsdp, "fp8_config": precision == "fp8"}
    for name, value in config.items():
        if value in (None, False, 0, "", "no", [], {}, _USUAL.get(name)) or name in FILE_READ:
            continue
        if not in_use.get(name, True):
            reasons[name] = f"only {SECTIONS[name][2]} reads it"
        elif name in SECTIONS and isinstance(value, Mapping):
            reasons |= {key: _UNKNOWN for key, option, _ in _inner(name, value) if option not in SECTIONS[name][1]}
        else:
            reasons[name] = FILE_DROPPED.get(name, _UNKNOWN)
    if config.get("fp16") and not _is_fp16(config):
        reasons["fp16"] = "mixed_precision is given, too"
    return reasons
