"""The configuration file of accelerate: its settings by the names of the options, and its keys without effect. Pure.

Source of the keys: accelerate 1.15, commands/config/config_args.py; a test compares.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from client_lib.errors import NotSupported
from client_lib.launch_lines import accelerate_variables as variables
from client_lib.launch_lines import lines

FILE = "accelerate's config file"

READ = frozenset(
    {"compute_environment", "distributed_type", "num_processes", "num_machines", "gpu_ids", "mixed_precision", "fp16"}
    | {"use_cpu", "debug", "enable_cpu_affinity", "dynamo_backend"}
)
SECTIONS: dict[str, tuple[str, Collection[str], str]] = {
    # key: (prefix of its options, those options, who reads it)
    "fsdp_config": ("fsdp_", variables.FSDP, "distributed_type: FSDP"),
    "fp8_config": ("fp8_", {*variables.FP8, variables.FP8_LINEAR}, "mixed_precision: fp8"),
    "dynamo_config": ("dynamo_", {*variables.DYNAMO, "dynamo-backend"}, ""),
}
DROPPED = lines.by_name(
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


def settings(config: Mapping[str, Any]) -> dict[str, Any]:
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


def check_place(config: Mapping[str, Any], given: Mapping[str, str], ways_out: Mapping[str, str]) -> None:
    """Check that the file asks for nothing that does not exist here. `given`: the options of the line. `ways_out`:
    hints by the name of the option with the same meaning.

    Raises NotSupported: it asks for a service or library that does not exist here.
    """
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
            hint=ways_out[kind],
        )
    if config.get("parallelism_config"):
        raise NotSupported(
            f"{FILE} has a parallelism_config, and that is not supported here", hint=ways_out["use-parallelism-config"]
        )


def without_effect(config: Mapping[str, Any], *, fsdp: bool, precision: str) -> dict[str, str]:
    """Keys that have no effect, with the reason for each. Keys with their usual value are left out."""
    reasons: dict[str, str] = {}
    in_use = {"fsdp_config": fsdp, "fp8_config": precision == "fp8"}
    for name, value in config.items():
        if value in (None, False, 0, "", "no", [], {}, _USUAL.get(name)) or name in READ:
            continue
        if not in_use.get(name, True):
            reasons[name] = f"only {SECTIONS[name][2]} reads it"
        elif name in SECTIONS and isinstance(value, Mapping):
            reasons |= {key: _UNKNOWN for key, option, _ in _inner(name, value) if option not in SECTIONS[name][1]}
        else:
            reasons[name] = DROPPED.get(name, _UNKNOWN)
    if config.get("fp16") and not _is_fp16(config):
        reasons["fp16"] = "mixed_precision is given, too"
    return reasons


_UNKNOWN = "accelerate has no such setting, or a newer one has it"
