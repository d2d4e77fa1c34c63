"""A line of `accelerate launch` as fields of a job. Pure.

num_processes is the total, as accelerate counts. `accelerate_file` reads its configuration file, and
`accelerate_variables` has what the library reads from its environment. Every option stands in a table of one of the
modules, and a test compares with accelerate's parser.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from client_lib.errors import InvalidRequest, NotSupported
from client_lib.launch_lines import accelerate_file, lines
from client_lib.launch_lines import accelerate_variables as variables
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
    config = accelerate_file.settings(file)
    counted, given_by = _counted(given, config)
    fsdp, settings = _is_fsdp(given, config), {**config, **given}
    variables_set = variables.of(settings, fsdp=fsdp, line=given)
    inert = accelerate_file.without_effect(file, fsdp=fsdp, precision=variables.precision(settings))
    fields = what_runs(
        line.rest, LAUNCHER, module="module" in given, no_python="no-python" in given, python=python or "python"
    )
    return LaunchLine(
        LAUNCHER,
        {**fields, **counted, **({"env_variables": variables_set} if variables_set else {})},
        {"type": "nogpu"} if "cpu" in given else {},
        {**given_by, "env_variables": f"the {LAUNCHER} line"},
        [*dropped(given, DROPPED), *dropped(inert, inert, "{} of " + accelerate_file.FILE)],
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
    accelerate_file.check_place(content, given, REFUSED)
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
