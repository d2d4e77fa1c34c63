"""The environment variables that `accelerate launch` sets for its library. Pure.

Only settings of the line or the configuration file are set: the library's own defaults are the launcher's. A test
compares with what accelerate itself sets. Source: accelerate 1.15, utils/launch.py, prepare_multi_gpu_env and
prepare_simple_launcher_cmd_env.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from client_lib.errors import InvalidRequest


class Variable(NamedTuple):
    name: str
    default: str | None = None
    """Default of the launcher's parser; None: not set unless it is given."""
    lower: bool = False


FSDP: dict[str, Variable] = {
    "fsdp-version": Variable("FSDP_VERSION", "1"),
    "fsdp-sharding-strategy": Variable("FSDP_SHARDING_STRATEGY", "FULL_SHARD"),
    "fsdp-reshard-after-forward": Variable("FSDP_RESHARD_AFTER_FORWARD", "true", lower=True),
    "fsdp-offload-params": Variable("FSDP_OFFLOAD_PARAMS", "false", lower=True),
    "fsdp-min-num-params": Variable("FSDP_MIN_NUM_PARAMS", "100000000"),
    "fsdp-auto-wrap-policy": Variable("FSDP_AUTO_WRAP_POLICY"),
    "fsdp-transformer-layer-cls-to-wrap": Variable("FSDP_TRANSFORMER_CLS_TO_WRAP"),
    "fsdp-backward-prefetch": Variable("FSDP_BACKWARD_PREFETCH"),
    "fsdp-state-dict-type": Variable("FSDP_STATE_DICT_TYPE"),
    "fsdp-forward-prefetch": Variable("FSDP_FORWARD_PREFETCH", "false", lower=True),
    "fsdp-use-orig-params": Variable("FSDP_USE_ORIG_PARAMS", "true", lower=True),
    "fsdp-cpu-ram-efficient-loading": Variable("FSDP_CPU_RAM_EFFICIENT_LOADING", "true", lower=True),
    "fsdp-sync-module-states": Variable("FSDP_SYNC_MODULE_STATES", "true", lower=True),
    "fsdp-activation-checkpointing": Variable("FSDP_ACTIVATION_CHECKPOINTING", "false", lower=True),
    "fsdp-activation-checkpointing-offload": Variable("FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD", "false", lower=True),
    "fsdp-ignored-modules": Variable("FSDP_IGNORED_MODULES"),  # only a configuration file can say it
}
FP8: dict[str, Variable] = {
    "fp8-backend": Variable("ACCELERATE_FP8_BACKEND"),
    "fp8-use-autocast-during-eval": Variable("ACCELERATE_FP8_USE_AUTOCAST_DURING_EVAL", "False"),
    "fp8-margin": Variable("ACCELERATE_FP8_MARGIN", "0"),
    "fp8-interval": Variable("ACCELERATE_FP8_INTERVAL", "1"),
    "fp8-format": Variable("ACCELERATE_FP8_FORMAT", "HYBRID"),
    "fp8-amax-history-len": Variable("ACCELERATE_FP8_AMAX_HISTORY_LEN", "1024"),
    "fp8-amax-compute-algo": Variable("ACCELERATE_FP8_AMAX_COMPUTE_ALGO", "most_recent"),
    "fp8-opt-level": Variable("ACCELERATE_FP8_OPT_LEVEL", "O2"),
    "fp8-enable-fsdp-float8-all-gather": Variable("ACCELERATE_FP8_ENABLE_FSDP_FLOAT8_ALL_GATHER", "true"),
    "fp8-pad-inner-dim": Variable("ACCELERATE_FP8_PAD_INNER_DIM", "true"),
}
FP8_LINEAR = "fp8-override-linear-precision"  # one option, three variables
DYNAMO: dict[str, Variable] = {
    "dynamo-mode": Variable("ACCELERATE_DYNAMO_MODE", "default"),
    "dynamo-use-fullgraph": Variable("ACCELERATE_DYNAMO_USE_FULLGRAPH", "False"),
    "dynamo-use-dynamic": Variable("ACCELERATE_DYNAMO_USE_DYNAMIC", "False"),
    "dynamo-use-regional-compilation": Variable("ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION", "False"),
}
_SWITCHES = {
    # the option or key of the file -> what is set where it is on
    "debug": ("ACCELERATE_DEBUG_MODE", "true"),
    "enable-cpu-affinity": ("ACCELERATE_CPU_AFFINITY", "1"),
    "cpu": ("ACCELERATE_USE_CPU", "True"),
    "use-cpu": ("ACCELERATE_USE_CPU", "True"),
}
PRECISIONS = ("no", "fp16", "bf16", "fp8")

FLAGS = frozenset(
    {"debug", "enable-cpu-affinity", "use-fsdp", "fp8-use-autocast-during-eval"}
    | {"dynamo-use-fullgraph", "dynamo-use-dynamic", "dynamo-use-regional-compilation"}
)
VALUED = (
    (
        FSDP.keys()
        | FP8.keys()
        | DYNAMO.keys()
        | {FP8_LINEAR, "dynamo-backend", "mixed-precision", "num-cpu-threads-per-process"}
    )
    - FLAGS
    - {"fsdp-ignored-modules"}
)


def of(settings: Mapping[str, Any], *, fsdp: bool, line: Mapping[str, str]) -> dict[str, str]:
    """The variables that the launcher would set for `settings`, those of the file overridden by the line's; a flag is
    ''.

    Raises InvalidRequest for values that accelerate refuses.
    """
    found = {name: value for key, (name, value) in _SWITCHES.items() if key in line or settings.get(key) is True}
    chosen = precision(settings)
    if chosen:
        if chosen not in PRECISIONS:
            raise InvalidRequest(f"--mixed_precision {chosen!r}: it is one of {', '.join(PRECISIONS)}")
        found["ACCELERATE_MIXED_PRECISION"] = chosen
    if chosen == "fp8":
        found |= _family(FP8, settings) | _fp8_linear(settings)
    if {"dynamo-backend", *DYNAMO} & settings.keys():
        found["ACCELERATE_DYNAMO_BACKEND"] = str(settings.get("dynamo-backend", "no")).upper()
        found |= _family(DYNAMO, settings)
    if fsdp:
        found.pop("ACCELERATE_USE_CPU", None)
        found |= _fsdp(settings)
    if "num-cpu-threads-per-process" in settings:
        found["OMP_NUM_THREADS"] = str(settings["num-cpu-threads-per-process"])
    return found


def precision(settings: Mapping[str, Any]) -> str:
    return str(settings.get("mixed-precision", "")).lower()


def _fsdp(settings: Mapping[str, Any]) -> dict[str, str]:
    if settings.get("fsdp-sync-module-states") is False and settings.get("fsdp-cpu-ram-efficient-loading", True):
        raise InvalidRequest(
            "accelerate's config file has fsdp_cpu_ram_efficient_loading without fsdp_sync_module_states",
            hint="the first needs the second: set it to true",
        )
    return {"ACCELERATE_USE_FSDP": "true", **_family(FSDP, settings)}


def _family(family: Mapping[str, Variable], settings: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for option, variable in family.items():
        value = settings.get(option, variable.default)
        if value is not None:
            text = "True" if value == "" else str(value)  # a flag that is given
            found[variable.name] = text.lower() if variable.lower else text
    return found


def _fp8_linear(settings: Mapping[str, Any]) -> dict[str, str]:
    value = settings.get(FP8_LINEAR, "false,false,false")
    parts = value.split(",") if isinstance(value, str) else [str(part) for part in value]
    names = ("FPROP", "DGRAD", "WGRAD")
    if len(parts) != len(names):
        raise InvalidRequest(
            f"--fp8_override_linear_precision {value}: it is three of true and false, as in true,false,false"
        )
    return {
        f"ACCELERATE_FP8_OVERRIDE_{name}": str(part.strip().lower() in ("true", "1", "yes", "y", "t", "on"))
        for name, part in zip(names, parts, strict=True)
    }
