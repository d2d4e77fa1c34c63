"""A line of `accelerate launch` and its configuration file as fields of a job. Pure.

num_processes is the total, as accelerate counts. Every option and every key of the file stands in a
table, and tests compare with accelerate 1.15: its parser, commands/config/config_args.py, and the
variables that it sets for its library (utils/launch.py, prepare_multi_gpu_env and
prepare_simple_launcher_cmd_env).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from client_lib.errors import InvalidRequest, NotSupported
from client_lib.launch_lines import lines
from client_lib.launch_lines.lines import (
    LaunchLine,
    Machine,
    OptionTable,
    dropped,
    split,
    what_runs,
    whole_number,
)
from client_lib.launcher_protocol.plan import RANK_VARIABLES

LAUNCHER = "accelerate launch"
FILE = "accelerate's config file"

# --- options that become variables of the library, with the default of its parser. None: the
# variable is set only if the option is given

FSDP: dict[str, str | None] = {
    "fsdp-version": "1",
    "fsdp-sharding-strategy": "FULL_SHARD",
    "fsdp-reshard-after-forward": "true",
    "fsdp-offload-params": "false",
    "fsdp-min-num-params": "100000000",
    "fsdp-auto-wrap-policy": None,
    "fsdp-transformer-layer-cls-to-wrap": None,
    "fsdp-backward-prefetch": None,
    "fsdp-state-dict-type": None,
    "fsdp-forward-prefetch": "false",
    "fsdp-use-orig-params": "true",
    "fsdp-cpu-ram-efficient-loading": "true",
    "fsdp-sync-module-states": "true",
    "fsdp-activation-checkpointing": "false",
    "fsdp-activation-checkpointing-offload": "false",
    "fsdp-ignored-modules": None,  # only a configuration file can say it
}
FP8: dict[str, str | None] = {
    "fp8-backend": None,
    "fp8-use-autocast-during-eval": "False",
    "fp8-margin": "0",
    "fp8-interval": "1",
    "fp8-format": "HYBRID",
    "fp8-amax-history-len": "1024",
    "fp8-amax-compute-algo": "most_recent",
    "fp8-opt-level": "O2",
    "fp8-enable-fsdp-float8-all-gather": "true",
    "fp8-pad-inner-dim": "true",
}
FP8_LINEAR = "fp8-override-linear-precision"  # one option, three variables
DYNAMO: dict[str, str | None] = {
    "dynamo-mode": "default",
    "dynamo-use-fullgraph": "False",
    "dynamo-use-dynamic": "False",
    "dynamo-use-regional-compilation": "False",
}
DEEPSPEED: dict[str, str] = {
    # the option or key of the file -> the variable that has its value
    "zero-stage": "ACCELERATE_DEEPSPEED_ZERO_STAGE",
    "gradient-accumulation-steps": "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
    "gradient-clipping": "ACCELERATE_GRADIENT_CLIPPING",
    "offload-optimizer-device": "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE",
    "offload-param-device": "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE",
    "zero3-init-flag": "ACCELERATE_DEEPSPEED_ZERO3_INIT",
    "zero3-save-16bit-model": "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL",
    "deepspeed-config-file": "ACCELERATE_DEEPSPEED_CONFIG_FILE",
    "deepspeed-moe-layer-cls-names": "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES",
}
_AS_WRITTEN = ("deepspeed-config-file", "deepspeed-moe-layer-cls-names")
"""Settings of DEEPSPEED whose values keep their capitals."""
DEEPSPEED_DROPPED = lines.by_name(
    {
        lines.RENDEZVOUS: (
            "deepspeed-hostfile deepspeed-exclusion-filter deepspeed-inclusion-filter "
            "deepspeed-multinode-launcher"
        ),
        "accelerate does not pass it on": "offload-optimizer-nvme-path offload-param-nvme-path",
    }
)
PARALLELISM: dict[str, str] = {
    "parallelism-config-dp-replicate-size": "1",
    "parallelism-config-dp-shard-size": "1",
    "parallelism-config-tp-size": "1",
    "parallelism-config-cp-size": "1",
    "parallelism-config-cp-backend": "torch",
    "parallelism-config-cp-comm-strategy": "allgather",
    "parallelism-config-sp-size": "1",
    "parallelism-config-sp-backend": "deepspeed",
    "parallelism-config-sp-seq-length": "None",
    "parallelism-config-sp-seq-length-is-variable": "True",
    "parallelism-config-sp-attn-implementation": "sdpa",
}
_ONLY_WITH = {
    # settings of PARALLELISM that are set only where this size is above 1
    "parallelism-config-cp-comm-strategy": "parallelism-config-cp-size",
    "parallelism-config-sp-seq-length": "parallelism-config-sp-size",
    "parallelism-config-sp-seq-length-is-variable": "parallelism-config-sp-size",
    "parallelism-config-sp-attn-implementation": "parallelism-config-sp-size",
}
_SWITCHES = {
    # the option or key of the file -> what is set where it is on
    "debug": ("ACCELERATE_DEBUG_MODE", "true"),
    "enable-cpu-affinity": ("ACCELERATE_CPU_AFFINITY", "1"),
    "cpu": ("ACCELERATE_USE_CPU", "True"),
    "use-cpu": ("ACCELERATE_USE_CPU", "True"),
}
PRECISIONS = ("no", "fp16", "bf16", "fp8")

# --- all options

DROPPED = lines.by_name(
    {
        lines.ONE_SUBMIT: "machine-rank",
        lines.RENDEZVOUS: (
            "main-process-ip main-process-port same-network rdzv-backend rdzv-conf mpirun-hostfile"
        ),
        lines.LOGS: "tee log-dir",
        lines.PROGRAM: "role monitor-interval quiet",
        lines.TPU: "main-training-function downcast-bf16 vm env no-tpu-cluster tpu-use-sudo",
    }
)
_PLUGIN = "build it in the script: Accelerator({}); its processes start as any others"
_NO_TPU = "jobs run on GPUs or the CPU"
_NO_SAGEMAKER = "SageMaker is another service; leave the option out"
REFUSED: dict[str, str] = {
    "use-megatron-lm": _PLUGIN.format("megatron_lm_plugin=MegatronLMPlugin(...)"),
    **lines.by_name(
        {_NO_TPU: "tpu tpu-cluster", _NO_SAGEMAKER: "aws-access-key-id aws-secret-access-key"}
    ),
    "help": "`client-lib submit --help` lists the options of a job",
}
_FLAGS = frozenset(
    {"cpu", "multi-gpu", "module", "no-python", "debug", "enable-cpu-affinity", "use-fsdp"}
    | {"use-deepspeed", "use-parallelism-config"}
    | {
        "fp8-use-autocast-during-eval",
        "dynamo-use-fullgraph",
        "dynamo-use-dynamic",
        "dynamo-use-regional-compilation",
    }
    | {"same-network", "quiet", "downcast-bf16", "no-tpu-cluster", "tpu-use-sudo"}
    | (REFUSED.keys() - {"aws-access-key-id", "aws-secret-access-key"})
)
_VALUED = frozenset(
    {
        "config-file",
        "num-processes",
        "num-machines",
        "gpu-ids",
        "max-restarts",
        "num-cpu-threads-per-process",
    }
    | {"mixed-precision", "dynamo-backend", FP8_LINEAR}
    | (
        FSDP.keys() - {"fsdp-ignored-modules"}
        | FP8.keys()
        | DYNAMO.keys()
        | DEEPSPEED.keys()
        | DEEPSPEED_DROPPED.keys()
        | PARALLELISM.keys()
        | DROPPED.keys()
        | REFUSED.keys()
    )
)
TABLE = OptionTable(
    LAUNCHER,
    flags=_FLAGS,
    valued=_VALUED - _FLAGS,
    # options that accelerate reads only with --use-megatron-lm, which is refused here
    families=("megatron-lm-",),
    short={"m": "module", "q": "quiet", "t": "tee", "h": "help"},
    abbreviations=False,  # as accelerate's own parser
)

# --- all keys of the configuration file

FILE_READ = frozenset(
    {
        "compute_environment",
        "distributed_type",
        "num_processes",
        "num_machines",
        "gpu_ids",
        "mixed_precision",
        "fp16",
    }
    | {"use_cpu", "debug", "enable_cpu_affinity", "dynamo_backend"}
)
SECTIONS: dict[str, tuple[str, Collection[str], str]] = {
    # key: (prefix of its options, those options, who reads it)
    "fsdp_config": ("fsdp_", FSDP, "distributed_type: FSDP"),
    "fp8_config": ("fp8_", {*FP8, FP8_LINEAR}, "mixed_precision: fp8"),
    "dynamo_config": ("dynamo_", {*DYNAMO, "dynamo-backend"}, "another distributed_type"),
    "deepspeed_config": ("", DEEPSPEED, "distributed_type: DEEPSPEED"),
    "parallelism_config": ("", PARALLELISM, "a distributed_type of several processes"),
}
FILE_DROPPED = lines.by_name(
    {
        lines.ONE_SUBMIT: "machine_rank",
        lines.RENDEZVOUS: (
            "main_process_ip main_process_port rdzv_backend same_network mpirun_config"
        ),
        lines.TPU: "main_training_function downcast_bf16 commands command_file "
        "tpu_name tpu_zone tpu_vm tpu_env tpu_use_cluster tpu_use_sudo",
        "only distributed_type: MEGATRON_LM reads it": "megatron_lm_config",
    }
)
_USUAL = {"rdzv_backend": "static", "main_training_function": "main", "same_network": True}
"""Values that `accelerate config` writes into each file."""
_NOTHING = (None, "none", "standard")
"""Values of DeepSpeed's settings that ask for nothing beyond torchrun."""
_UNKNOWN = "accelerate has no such setting, or a newer one has it"


def read(words: Sequence[str], machine: Machine, python: str | None) -> LaunchLine:
    """`python`: the interpreter that the line names.
    Raises InvalidRequest or NotSupported: see `client_lib.launch_lines.read`."""
    line = split(words, TABLE)
    given = line.given
    chosen = [
        f"--{name}"
        for name in ("cpu", "multi-gpu", "tpu", "use-deepspeed", "use-fsdp")
        if name in given
    ]
    if len(chosen) > 1:
        raise InvalidRequest(
            f"{LAUNCHER}: {' and '.join(chosen)} exclude each other", hint="keep one of them"
        )
    for name in given.keys() & REFUSED.keys():
        raise NotSupported(f"{LAUNCHER} --{name} is not supported here", hint=REFUSED[name])
    path = given.get("config-file")
    # with --cpu accelerate reads only a file that is named
    is_read = path is not None or "cpu" not in given
    values = machine.accelerate_config(path, machine.environment) if is_read else {}
    file = {str(name): value for name, value in values.items()}  # in YAML the key `on` is True
    _check_file(file, given)
    config = _settings(file)
    counted, given_by = _counted(given, config)
    kind = _kind(given, file)
    fsdp = kind == "FSDP"
    settings = {**config, **given}
    variables = _variables(settings, given, fsdp=fsdp)
    with_deepspeed = kind == "DEEPSPEED"
    if with_deepspeed:
        kept = {name: value for name, value in variables.items() if not _unused(name)}
        variables = {**kept, **_deepspeed(settings, file, given)}
    parallel = _wants_parallelism(given, file) and bool(kind)
    if parallel:
        variables |= _parallelism(settings)
    if kind and not counted.get("processes_per_worker") and file:
        raise InvalidRequest(f"{FILE} leaves num_processes open", hint="give --num-processes")
    in_use = {
        "fsdp_config": fsdp,
        "fp8_config": variables.get("ACCELERATE_MIXED_PRECISION") == "fp8",
        "dynamo_config": not with_deepspeed,
        "deepspeed_config": with_deepspeed,
        "parallelism_config": parallel,
    }
    inert = _without_effect(file, in_use)
    reasons = {**DROPPED, **DEEPSPEED_DROPPED}
    if with_deepspeed:
        reasons |= dict.fromkeys(
            (*DYNAMO, "dynamo-backend", "num-cpu-threads-per-process"),
            "accelerate does not pass it on with DeepSpeed",
        )
    fields = {**what_runs(LAUNCHER, given, line.rest, python), **counted}
    defaults: dict[str, Any] = {"type": "nogpu"} if "cpu" in given else {}
    several = counted.get("n_workers", 1) * counted.get("processes_per_worker", 1) > 1
    if several or kind:
        if not fields["script"].endswith(".py"):  # a `python -m` line of its own would have none
            variables[RANK_VARIABLES] = "1"
    else:  # accelerate starts a single process without torchrun
        defaults["env_variables"] = {RANK_VARIABLES: "0"}
    if with_deepspeed:  # the working directory is on the path of its scripts
        before = machine.environment.get("PYTHONPATH")
        defaults["env_variables"] = {"PYTHONPATH": f"{before}:." if before else "."}
    return LaunchLine(
        LAUNCHER,
        {**fields, "env_variables": variables} if variables else fields,
        defaults,
        {**given_by, "env_variables": f"the {LAUNCHER} line"},
        [
            *dropped(given, {**DROPPED, **DEEPSPEED_DROPPED}),
            *dropped(inert, inert, "{} of " + FILE),
        ],
        python,
    )


def _kind(given: Mapping[str, str], file: Mapping[str, object]) -> str | None:
    """The distributed_type with which accelerate starts even a single process by torchrun: FSDP,
    DEEPSPEED, MULTI_...; None: it starts the script itself, or several by torchrun. The line's own
    choice wins over the file's; --cpu turns it off."""
    if "cpu" in given:
        return None
    for option, kind in _CHOICES.items():
        if option in given:
            return kind
    kind = str(file.get("distributed_type"))
    return kind if kind in ("FSDP", "DEEPSPEED") or kind.startswith("MULTI_") else None


_CHOICES = {"use-deepspeed": "DEEPSPEED", "use-fsdp": "FSDP", "multi-gpu": "MULTI_GPU"}


def _unused(variable: str) -> bool:
    """True for variables that its DeepSpeed launcher does not set."""
    unused = ("ACCELERATE_USE_CPU", "OMP_NUM_THREADS")
    return variable in unused or variable.startswith("ACCELERATE_DYNAMO_")


def _wants_parallelism(given: Mapping[str, str], file: Mapping[str, object]) -> bool:
    """Raises InvalidRequest for the option without what it needs."""
    if "use-parallelism-config" not in given:
        return bool(file.get("parallelism_config")) and not _CHOICES.keys() & given.keys()
    if "use-fsdp" not in given or given.get("fsdp-version", "1") == "1":
        raise InvalidRequest(
            f"{LAUNCHER} --use_parallelism_config needs --use_fsdp and --fsdp_version 2",
            hint="give both",
        )
    return True


def _deepspeed(
    settings: Mapping[str, object], file: Mapping[str, object], line: Mapping[str, str]
) -> dict[str, str]:
    """The variables of its DeepSpeed launcher. Source: accelerate 1.15, utils/launch.py,
    prepare_deepspeed_cmd_env; commands/launch.py, launch_command."""
    section = file.get("deepspeed_config")
    fields = [str(key) for key in section] if isinstance(section, Mapping) else []
    if "mixed-precision" not in line and settings.get("mixed-precision") is not None:
        fields.append("mixed_precision")
    found = {
        "ACCELERATE_USE_DEEPSPEED": "true",
        "ACCELERATE_CONFIG_DS_FIELDS": ",".join(fields).lower(),
    }
    for option, variable in DEEPSPEED.items():
        value = settings.get(option)
        if value is None:
            continue
        if option == "gradient-clipping" and option in line:
            value = _fraction(option, line[option])
        found[variable] = str(value) if option in _AS_WRITTEN else str(value).lower()
    return found


def _fraction(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidRequest(f"{LAUNCHER} --{option} {text!r} is no number") from None


def _parallelism(settings: Mapping[str, object]) -> dict[str, str]:
    """Source: accelerate 1.15, utils/launch.py, prepare_extend_env_parallelism_config."""
    found = {"ACCELERATE_USE_PARALLELISM_CONFIG": "true"}
    for option, default in PARALLELISM.items():
        size = _ONLY_WITH.get(option)
        if size is None or str(settings.get(size, "1")) != "1":
            found[option.replace("-", "_").upper()] = str(settings.get(option, default))
    return found


def _check_file(file: Mapping[str, object], given: Mapping[str, str]) -> None:
    """Raises NotSupported: the file asks for a service or library that isn't here.
    `given`: options of the line.
    """
    if str(file.get("compute_environment", "LOCAL_MACHINE")) != "LOCAL_MACHINE":
        raise NotSupported(
            f"{FILE} asks for compute_environment={file['compute_environment']}",
            hint="give another file with --config_file",
        )
    if _CHOICES.keys() & given.keys():
        return
    kind = str(file.get("distributed_type"))
    refused = {"MEGATRON_LM": "use-megatron-lm", "XLA": "tpu", "TPU": "tpu"}.get(kind)
    if refused:
        raise NotSupported(
            f"{FILE} asks for distributed_type={kind}, and that is not supported here",
            hint=REFUSED[refused],
        )


def _settings(file: Mapping[str, object]) -> dict[str, Any]:
    """The settings of the file by the names of the options."""
    found: dict[str, Any] = {}
    for name, value in file.items():
        if isinstance(value, Mapping):
            found |= {option: inner for _, option, inner in _inner(name, value)}
        else:
            found[name.replace("_", "-")] = value
    if file.get("fp16") and "mixed_precision" not in file:  # the older key
        found["mixed-precision"] = "fp16"
    return {name: value for name, value in found.items() if value is not None}


def _inner(section: str, values: Mapping[str, object]) -> Iterator[tuple[str, str, Any]]:
    """Key, option and value of each setting in a section."""
    prefix = SECTIONS[section][0] if section in SECTIONS else ""
    for key, value in values.items():
        option = str(key) if str(key).startswith(prefix) else f"{prefix}{key}"
        yield f"{section}.{key}", option.replace("_", "-"), value


def _counted(
    given: Mapping[str, str], config: Mapping[str, object]
) -> tuple[dict[str, Any], dict[str, str]]:
    """The fields that hold numbers, and the words that say each."""

    def words(option: str) -> str:
        name = option.replace("-", "_")
        return (
            f"--{name} {given[option]}"
            if option in given
            else f"{name}: {config[option]} of {FILE}"
        )

    total, machines = (_number(name, given, config) for name in ("num-processes", "num-machines"))
    fields: dict[str, Any] = {}
    given_by: dict[str, str] = {}
    if total or machines:
        fields["n_workers"] = machines or 1
        given_by["n_workers"] = (
            words("num-machines") if machines else f"{LAUNCHER} without --num_machines"
        )
    if total:
        share, left = divmod(total, machines or 1)
        if left:
            raise InvalidRequest(
                f"--num_processes {total} is the total, and {machines} machines can't share it "
                "evenly",
                hint=f"write --num_processes {max(machines or 1, total - left)}",
            )
        fields["processes_per_worker"], given_by["processes_per_worker"] = (
            share,
            words("num-processes"),
        )
    indices = str(given.get("gpu-ids", config.get("gpu-ids", "all")))
    if indices != "all":
        fields["gpus"] = [
            whole_number("--gpu_ids", index.strip(), 0) for index in indices.split(",")
        ]
        given_by["gpus"] = words("gpu-ids")
    if "max-restarts" in given:
        fields["max_retry"] = whole_number("--max_restarts", given["max-restarts"], 0)
        given_by["max_retry"] = words("max-restarts")
    return fields, given_by


def _number(name: str, given: Mapping[str, str], config: Mapping[str, object]) -> int | None:
    if name in given:
        return whole_number(f"--{name}", given[name], 1)
    if config.get(name) == -1:
        raise InvalidRequest(f"{FILE} leaves {name.replace('-', '_')} open", hint=f"give --{name}")
    return whole_number(f"{name} of {FILE}", str(config[name]), 1) if name in config else None


def _variables(
    settings: Mapping[str, object], line: Mapping[str, str], *, fsdp: bool
) -> dict[str, str]:
    """The variables that the launcher would set for `settings`, in which options of the line
    override the file's. A flag has the value ''. An option that is not given sets no variable, as
    the library has the launcher's defaults. Raises InvalidRequest for values that accelerate
    refuses."""
    found = {
        name: value
        for key, (name, value) in _SWITCHES.items()
        if key in line or settings.get(key) is True
    }
    precision = str(settings.get("mixed-precision", "")).lower()
    if precision:
        if precision not in PRECISIONS:
            raise InvalidRequest(
                f"--mixed_precision {precision!r}: it is one of {', '.join(PRECISIONS)}"
            )
        found["ACCELERATE_MIXED_PRECISION"] = precision
    if precision == "fp8":
        found |= _texts(FP8, settings)
        value = settings.get(FP8_LINEAR, "false,false,false")
        parts = [str(part) for part in value] if isinstance(value, list) else str(value).split(",")
        if len(parts) != 3:
            raise InvalidRequest(
                f"--fp8_override_linear_precision {value}: it is three of true and false, as in "
                "true,false,false"
            )
        for name, part in zip(("FPROP", "DGRAD", "WGRAD"), parts, strict=True):
            is_on = part.strip().lower() in ("true", "1", "yes", "y", "t", "on")
            found[f"ACCELERATE_FP8_OVERRIDE_{name}"] = str(is_on)
    if {"dynamo-backend", *DYNAMO} & settings.keys():
        found["ACCELERATE_DYNAMO_BACKEND"] = str(settings.get("dynamo-backend", "no")).upper()
        found |= _texts(DYNAMO, settings)
    if fsdp:
        found.pop("ACCELERATE_USE_CPU", None)
        if settings.get("fsdp-sync-module-states") is False and settings.get(
            "fsdp-cpu-ram-efficient-loading", True
        ):
            raise InvalidRequest(
                f"{FILE} has fsdp_cpu_ram_efficient_loading without fsdp_sync_module_states",
                hint="the first needs the second: set it to true",
            )
        found["ACCELERATE_USE_FSDP"] = "true"
        for name, text in _texts(FSDP, settings, "").items():
            is_switch = FSDP[name.lower().replace("_", "-")] in ("true", "false")
            found[name.replace("_LAYER_CLS_", "_CLS_")] = text.lower() if is_switch else text
    if "num-cpu-threads-per-process" in settings:
        found["OMP_NUM_THREADS"] = str(settings["num-cpu-threads-per-process"])
    return found


def _texts(
    defaults: Mapping[str, str | None], settings: Mapping[str, object], prefix: str = "ACCELERATE_"
) -> dict[str, str]:
    """The environment variables that these options become, with the values of the options or their
    defaults."""
    values = {option: settings.get(option, default) for option, default in defaults.items()}
    return {
        prefix + option.replace("-", "_").upper(): "True" if value == "" else str(value)
        for option, value in values.items()
        if value is not None
    }


def _without_effect(file: Mapping[str, object], in_use: Mapping[str, bool]) -> dict[str, str]:
    """Keys that have no effect, with the reason for each. Keys with their
    usual value are left out. `in_use`: sections that another setting turns on.
    """
    reasons: dict[str, str] = {}
    for name, value in file.items():
        if value in (None, False, 0, "", "no", [], {}, _USUAL.get(name)) or name in FILE_READ:
            continue
        if not in_use.get(name, True):
            reasons[name] = f"only {SECTIONS[name][2]} reads it"
        elif name in SECTIONS and isinstance(value, Mapping):
            reasons |= {
                key: DEEPSPEED_DROPPED.get(option, _UNKNOWN)
                for key, option, inner in _inner(name, value)
                if option not in SECTIONS[name][1] and inner not in _NOTHING
            }
        else:
            reasons[name] = FILE_DROPPED.get(name, _UNKNOWN)
    if file.get("fp16") and "mixed_precision" in file:
        reasons["fp16"] = "mixed_precision is given, too"
    return reasons
