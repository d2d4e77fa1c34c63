"""accelerate's line and configuration file as fields of a job, against what
accelerate itself would set.
"""

import os
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from client_lib.errors import ClientLibError, InvalidRequest, NotSupported
from client_lib.launch_lines import LaunchLine, Machine, read
from client_lib.launch_lines.accelerate import (
    DROPPED,
    FILE_DROPPED,
    FILE_READ,
    REFUSED,
    SECTIONS,
    TABLE,
)
from client_lib.launcher_protocol.plan import RANK_VARIABLES

FIND = "have no effect here: the workers of a job find each other by themselves"

pytestmark = pytest.mark.xdist_group("accelerate")


@pytest.fixture(scope="module")
def launch() -> Any:
    """accelerate's launcher. Imported on top, it would cost each worker of a run its seconds."""
    return pytest.importorskip("accelerate.commands.launch")


@pytest.fixture(scope="module")
def config_args() -> Any:
    return pytest.importorskip("accelerate.commands.config.config_args")


def line(text: str, config: dict[str, Any] | None = None) -> LaunchLine:
    found = read(
        shlex.split(f"accelerate launch {text}"), Machine(accelerate_config=lambda *_: config or {})
    )
    assert found is not None
    return found


def fields(text: str, config: dict[str, Any] | None = None) -> dict[str, Any]:
    """Without the script."""
    return {
        name: value
        for name, value in line(text, config).fields.items()
        if name not in ("script", "args")
    }


def test_every_option_of_accelerate_has_a_meaning(launch: Any) -> None:
    for action in launch.launch_command_parser()._actions:
        for option in action.option_strings:
            name = option.lstrip("-").replace("_", "-")
            if len(name) == 1:
                assert TABLE.find(option)
            else:
                assert TABLE.find(option) == name
                assert (name in TABLE.flags) == (action.nargs == 0), option
    assert not DROPPED.keys() & REFUSED.keys()


@pytest.mark.parametrize(
    ("options", "meant"),
    [
        ("", {}),
        ("--num_processes 4", {"n_workers": 1, "processes_per_worker": 4}),
        ("--num-processes=4 --num_machines 2", {"n_workers": 2, "processes_per_worker": 2}),
        (
            "--multi_gpu --num_processes 2 --gpu_ids 0,3",
            {"n_workers": 1, "processes_per_worker": 2, "gpus": [0, 3]},
        ),
        ("--gpu_ids all --max_restarts 2", {"max_retry": 2}),
        (
            (
                "--num_machines 2 --machine_rank 1 --main_process_ip h --main_process_port 1 "
                "--same_network"
            ),
            {"n_workers": 2},
        ),
    ],
)
def test_options_become_fields(options: str, meant: dict[str, Any]) -> None:
    reading = line(f"{options} train.py --lr 0.1 --num_processes 9")
    assert reading.fields == {
        "script": "train.py",
        "args": ["--lr", "0.1", "--num_processes", "9"],
        **meant,
    }


def test_a_damaged_file_is_no_traceback() -> None:
    notices = line("train.py", yaml.safe_load("on: 1\ndynamo_config: {1: 2}\n")).notices
    assert notices == [
        "True, dynamo_config.1 of accelerate's config file have no effect here: accelerate has no "
        "such setting, or a newer one has it"
    ]
    with pytest.raises(InvalidRequest, match="precision 5: it is three of true and false"):
        line("train.py", {"mixed_precision": "fp8", "fp8_config": {"override_linear_precision": 5}})


def test_other_ways_to_write_the_launcher() -> None:
    for start in (
        "accelerate-launch",
        "python -m accelerate.commands.launch",
        "/opt/bin/accelerate launch",
    ):
        found = read(
            [*start.split(), "--num_processes", "2", "-m", "package.train", "-v"], Machine()
        )
        assert found is not None
        assert found.fields["script"] == "python -m package.train"
        assert (found.fields["processes_per_worker"], found.fields["args"]) == (2, ["-v"])
    assert read(["accelerate", "env"], Machine()) is None


def test_what_has_no_effect_is_named_with_its_reason() -> None:
    notices = line("--machine_rank 1 --main_process_ip h --main_process_port 1 train.py").notices
    assert notices == [
        "--machine-rank has no effect here: one submit starts all workers",
        f"--main-process-ip, --main-process-port {FIND}",
    ]


def test_training_on_the_cpu_takes_no_gpu() -> None:
    assert line("--cpu --num_processes 2 train.py").defaults == {"type": "nogpu"}


@pytest.mark.parametrize(
    ("options", "variables"),
    [
        ("", "0"),
        ("--num_processes 1", "0"),
        ("--cpu --num_processes 1", "0"),
        ("--num_processes 2", None),
        ("--use_fsdp --num_processes 1", None),
        ("--multi_gpu", None),
    ],
)
def test_a_process_without_torchrun_gets_no_variables_of_ranks(
    options: str, variables: str | None
) -> None:
    found = line(f"{options} train.py").defaults.get("env_variables", {})
    assert found.get(RANK_VARIABLES) == variables


# --- against accelerate itself

FSDP_FILE = {
    "compute_environment": "LOCAL_MACHINE",
    "distributed_type": "FSDP",
    "mixed_precision": "bf16",
    "num_machines": 2,
    "num_processes": 8,
    "machine_rank": 0,
    "main_training_function": "main",
    "rdzv_backend": "static",
    "same_network": True,
    "use_cpu": False,
    "downcast_bf16": "no",
    "main_process_ip": "10.0.0.1",
    "main_process_port": 29500,
    "fsdp_config": {
        "fsdp_version": 2,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_transformer_layer_cls_to_wrap": "Block",
        "fsdp_offload_params": False,
        "fsdp_reshard_after_forward": True,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        "fsdp_cpu_ram_efficient_loading": True,
        "activation_checkpointing": True,
    },
    "dynamo_config": {
        "dynamo_backend": "INDUCTOR",
        "dynamo_mode": "default",
        "dynamo_use_dynamic": True,
    },
}
DYNAMO_FILE = {
    "distributed_type": "MULTI_GPU",
    "num_processes": 2,
    "dynamo_config": {"dynamo_backend": "EAGER"},
}
CPU_FILE = {
    "distributed_type": "MULTI_CPU",
    "num_processes": 2,
    "use_cpu": True,
    "debug": True,
    "mixed_precision": "no",
}


ZERO_2_FILE = {
    "compute_environment": "LOCAL_MACHINE",
    "deepspeed_config": {
        "deepspeed_multinode_launcher": "standard",
        "gradient_accumulation_steps": 4,
        "gradient_clipping": 1.0,
        "offload_optimizer_device": "none",
        "offload_param_device": "none",
        "zero3_init_flag": False,
        "zero_stage": 2,
    },
    "distributed_type": "DEEPSPEED",
    "mixed_precision": "bf16",
    "num_machines": 1,
    "num_processes": 2,
}
ZERO_3_FILE = {
    "deepspeed_config": {
        "deepspeed_config_file": "Configs/zero3.json",
        "deepspeed_moe_layer_cls_names": "MixtralSparseMoeBlock",
        "zero3_init_flag": True,
        "zero3_save_16bit_model": True,
        "zero_stage": 3,
        "offload_param_device": "NVME",
    },
    "distributed_type": "DEEPSPEED",
    "num_processes": 8,
    "parallelism_config": {"parallelism_config_sp_size": 4},
}
PARALLEL_FILE = {
    **FSDP_FILE,
    "num_machines": 1,
    "parallelism_config": {
        "parallelism_config_dp_shard_size": 2,
        "parallelism_config_tp_size": 2,
        "parallelism_config_cp_size": 2,
        "parallelism_config_cp_comm_strategy": "alltoall",
    },
}
FILES = {
    "none": None,
    "fsdp": FSDP_FILE,
    "dynamo": DYNAMO_FILE,
    "cpu": CPU_FILE,
    "zero2": ZERO_2_FILE,
    "zero3": ZERO_3_FILE,
    "parallel": PARALLEL_FILE,
}


@pytest.mark.parametrize("config", FILES.values(), ids=FILES)
@pytest.mark.parametrize(
    "options",
    [
        "",
        "--mixed_precision fp16",
        "--mixed-precision=no --num_cpu_threads_per_process 3",
        "--dynamo_backend inductor --dynamo_mode max-autotune --dynamo_use_fullgraph",
        "--enable_cpu_affinity --debug",
        "--use_fsdp",
        "--use_fsdp --fsdp_version 2 --fsdp_offload_params True --fsdp_auto_wrap_policy "
        "SIZE_BASED_WRAP --fsdp_min_num_params 2000 --fsdp_state_dict_type FULL_STATE_DICT "
        "--fsdp_sharding_strategy SHARD_GRAD_OP --fsdp_backward_prefetch BACKWARD_PRE "
        "--fsdp_transformer_layer_cls_to_wrap A,B --fsdp_use_orig_params false",
        "--cpu",
        "--use_deepspeed --zero_stage 3 --gradient_clipping 1 --offload_param_device CPU",
        "--use_deepspeed --deepspeed_config_file A.json --zero3_init_flag True",
        "--use_fsdp --fsdp_version 2 --use_parallelism_config --parallelism_config_tp_size 2",
    ],
)
def test_the_variables_are_those_that_accelerate_sets(
    launch: Any,
    options: str,
    config: dict[str, Any] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of its launcher that differ from the launcher's own for a bare line, which
    are the library's defaults.
    """
    for name in [name for name in os.environ if name.startswith(("ACCELERATE_", "FSDP_", "OMP_"))]:
        monkeypatch.delenv(name)
    # the configuration of who runs the tests; the library looks for it when it is imported
    monkeypatch.setattr(launch, "default_config_file", str(tmp_path / "none.yaml"))
    file = ""
    if config:
        (tmp_path / "accelerate.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
        file = f"--config_file {tmp_path / 'accelerate.yaml'} "
    count = "" if config else "--num_processes 2 "
    theirs = _environment(launch, f"{file}{count}{options} train.py")
    ours = line(f"{file}{count}{options} train.py", config).fields.get("env_variables", {})
    bare = _environment(launch, "--num_processes 2 train.py")
    said = {name: value for name, value in theirs.items() if bare.get(name) != value}
    assert {name: value for name, value in ours.items() if bare.get(name) != value} == said
    assert {name: theirs.get(name) for name in ours} == ours


# the launcher's and the runtime's
NOT_OURS = ("MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES", "PYTHONPATH")
PINNING = ("KMP_AFFINITY", "KMP_BLOCKTIME")  # would pin the ranks of a worker to the same cores


def _environment(launch: Any, text: str) -> dict[str, str]:
    """What accelerate's launcher adds for the line: its own code, up to where
    it would start processes.
    """
    args = launch.launch_command_parser().parse_args(shlex.split(text))
    args, defaults, is_of_file = launch._validate_launch_command(args)
    several = (args.use_fsdp or args.multi_gpu) and not args.cpu
    if args.use_deepspeed and not args.cpu:
        fields = list(defaults.deepspeed_config) if defaults else []
        fields += ["mixed_precision"] if is_of_file else []
        args.deepspeed_fields_from_accelerate_config = ",".join(fields)
        seen = launch.prepare_deepspeed_cmd_env(args)[1]
    elif several:
        seen = launch.prepare_multi_gpu_env(args)
    else:
        seen = launch.prepare_simple_launcher_cmd_env(args)[1]
    added = seen.items() - os.environ.items()
    found = {name: value for name, value in added if name not in (*NOT_OURS, *PINNING)}
    if "num_cpu_threads" not in text:
        found.pop("OMP_NUM_THREADS", None)  # ours shares the cores of a worker among its ranks
    if found.get("ACCELERATE_USE_CPU") == "False":
        del found["ACCELERATE_USE_CPU"]  # of a launcher of one process
    return found


def test_fp8_takes_its_settings_along() -> None:
    found = fields(
        "--mixed_precision fp8 --fp8_backend te --fp8_override_linear_precision true,false,True "
        "train.py"
    )
    variables = found["env_variables"]
    assert (variables["ACCELERATE_FP8_BACKEND"], variables["ACCELERATE_FP8_FORMAT"]) == (
        "te",
        "HYBRID",
    )
    assert [
        variables[f"ACCELERATE_FP8_OVERRIDE_{name}"] for name in ("FPROP", "DGRAD", "WGRAD")
    ] == [
        "True",
        "False",
        "True",
    ]


# --- the file


def test_a_file_says_the_counts_and_the_line_wins() -> None:
    assert fields("train.py", FSDP_FILE)["processes_per_worker"] == 4
    assert fields("--num_processes 2 train.py", FSDP_FILE)["processes_per_worker"] == 1
    reading = line("train.py", FSDP_FILE)
    assert reading.given_by["n_workers"] == "num_machines: 2 of accelerate's config file"
    assert reading.notices == [
        f"main_process_ip, main_process_port of accelerate's config file {FIND}"
    ]


def test_every_key_of_the_file_has_a_meaning(config_args: Any) -> None:
    keys = set(config_args.ClusterConfig.__dataclass_fields__)
    assert keys == (FILE_READ | SECTIONS.keys() | FILE_DROPPED.keys()) - {"fp16", "dynamo_backend"}


@pytest.mark.parametrize(
    ("config", "precision"),
    [
        ({"fp16": True}, "fp16"),
        ({"fp16": False}, None),
        ({"fp16": True, "mixed_precision": "bf16"}, "bf16"),
        ({"fp16": True, "mixed_precision": None}, None),
    ],
)
def test_the_older_key_fp16_is_read_as_accelerate_reads_it(
    config_args: Any, config: dict[str, Any], precision: str | None, tmp_path: Path
) -> None:
    file = tmp_path / "old.yaml"
    file.write_text(yaml.safe_dump({"distributed_type": "NO", **config}))
    assert config_args.load_config_from_file(str(file)).mixed_precision == precision
    assert (
        fields("train.py", config).get("env_variables", {}).get("ACCELERATE_MIXED_PRECISION")
        == precision
    )


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            {
                "machine_rank": 0,
                "rdzv_backend": "static",
                "same_network": True,
                "tpu_env": [],
                "downcast_bf16": "no",
            },
            None,
        ),
        (
            {"fp16": True, "mixed_precision": "bf16"},
            "fp16 of accelerate's config file has no effect",
        ),
        (
            {"fsdp_config": {"fsdp_version": 2}},
            "fsdp_config of accelerate's config file has no effect here: only distrib",
        ),
        ({"fp8_config": {"backend": "TE"}}, "only mixed_precision: fp8 reads it"),
        (
            {"deepspeed_config": {"zero_stage": 3}},
            "deepspeed_config of accelerate's config file has no effect",
        ),
        (
            {"tpu_name": "v4", "downcast_bf16": True},
            "tpu_name, downcast_bf16 of accelerate's config file have no effect",
        ),
        (
            {"dynamo_config": {"dynamo_mode": "default", "dynamo_speed": 3}},
            "dynamo_config.dynamo_speed of accelerate's",
        ),
        ({"mixed_precison": "bf16"}, "mixed_precison of accelerate's config file has no effect"),
    ],
)
def test_every_key_without_effect_is_named(config: dict[str, Any], said: str | None) -> None:
    notices = line("train.py", config).notices
    assert len(notices) == (1 if said else 0)
    assert not said or said in notices[0]


@pytest.mark.parametrize(
    ("text", "config", "error", "about"),
    [
        (
            "--num_processes 3 --num_machines 2 train.py",
            {},
            InvalidRequest,
            "write --num_processes 2",
        ),
        (
            "train.py",
            {"distributed_type": "MULTI_GPU", "num_processes": -1},
            InvalidRequest,
            "give --num-processes",
        ),
        (
            "--cpu --multi_gpu train.py",
            {},
            InvalidRequest,
            "--cpu and --multi-gpu exclude each other",
        ),
        ("--num_proc 2 train.py", {}, InvalidRequest, "did you mean --num-processes?"),
        ("--mixed_precision bf32 train.py", {}, InvalidRequest, "bf32"),
        (
            "train.py",
            {"distributed_type": "MEGATRON_LM", "num_processes": 2},
            NotSupported,
            "distributed_type=MEGATRON_LM",
        ),
        ("train.py", {"distributed_type": "FSDP"}, InvalidRequest, "give --num-processes"),
        (
            "--use_parallelism_config train.py",
            {},
            InvalidRequest,
            "needs --use_fsdp and --fsdp_version 2",
        ),
        ("--use_deepspeed --gradient_clipping x train.py", {}, InvalidRequest, "is no number"),
        ("train.py", {"compute_environment": "AMAZON_SAGEMAKER"}, NotSupported, "AMAZON_SAGEMAKER"),
        ("--tpu train.py", {}, NotSupported, "jobs run on GPUs or the CPU"),
        (
            "train.py",
            {
                "distributed_type": "FSDP",
                "num_processes": 2,
                "fsdp_config": {"fsdp_sync_module_states": False},
            },
            InvalidRequest,
            "set it to true",
        ),
        ("--config_file x.yaml", {}, InvalidRequest, "names no script"),
    ],
)
def test_what_accelerate_would_not_run_is_refused_in_words(
    text: str, config: dict[str, Any], error: type[ClientLibError], about: str
) -> None:
    with pytest.raises(error) as refused:
        line(text, config)
    assert about in str(refused.value)
