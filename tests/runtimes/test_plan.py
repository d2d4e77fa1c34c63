"""The orders of the launchers: a golden plan, the rules of working_dir, command and
environment, and what is shown.
"""

from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from client_lib.errors import InvalidRequest
from client_lib.launcher_protocol.plan import WorkerPlan
from client_lib.spec.job import JobSpec
from client_lib.spec.request import Code, CodeInPlace, CodeSnapshot, Submitter
from client_lib.spec.wire import Manifest
from server_stub.runtimes import Attempt
from server_stub.runtimes.instance_types import Catalogue
from server_stub.runtimes.local import LocalOptions, plan
from server_stub.runtimes.local.gpus import Gpu
from server_stub.runtimes.local.machine import Machine
from server_stub.runtimes.local.scheduling import Grant, needs
from server_stub.settings import Settings

MACHINE = Machine("host", "lo", cores=16, memory_gib=64.0, boot_id="b")
GPUS = [Gpu(n, f"GPU-{n}", "NVIDIA A100", 81920) for n in range(4)]
OPTIONS = LocalOptions(Settings(data_dir=Path("/data"), warm=False), python="/server/bin/python")
SUBMITTER = Submitter(
    python="/venv/bin/python",
    environment={"PATH": "/bin", "SHELL_SECRET": "of-the-shell"},
    working_dir="/home/me/proj",
)
SNAPSHOT = CodeSnapshot(
    sha256="0" * 64, root="/home/me/proj", script="src/train.py", working_dir="src"
)


def attempt(code: Code = CodeInPlace(), submitter: Submitter = SUBMITTER, **spec: Any) -> Attempt:  # noqa: B008  (frozen)
    secrets = {name: f"value-of-{name}" for name in spec.get("secrets", [])}
    return Attempt(
        job_id="id",
        job_name="train-1",
        number=2,
        spec=JobSpec(**({"script": "train.py"} | spec)),
        code=code,
        submitter=submitter,
        secret_values=secrets,
        job_dir=Path("/data/jobs/id"),
        snapshot=Path("/data/snapshots/0.tar.gz") if isinstance(code, CodeSnapshot) else None,
        created_at=datetime(2026, 11, 21, tzinfo=timezone.utc),
    )


def plans(
    of: Attempt, grant: Grant = ((),), conda: Path | None = None, machine: Machine = MACHINE
) -> list[WorkerPlan]:
    wanted = needs(of.spec, of.submitter, Catalogue(), machine, GPUS if any(grant) else [])
    port = plan.own_port(of.spec) or 12345
    return plan.worker_plans(of, wanted, grant, port, machine, OPTIONS, conda_prefix=conda)


def first(of: Attempt, **more: Any) -> WorkerPlan:
    return plans(of, **more)[0]


def shown(of: Attempt, cards: list[Gpu]) -> Manifest:
    wanted = needs(of.spec, of.submitter, Catalogue(), MACHINE, cards)
    size = wanted.gpus or 0
    return plan.manifest(plans(of, grant=(tuple(range(size)),) * wanted.workers), of, wanted)


def test_the_whole_plan_of_a_second_worker() -> None:
    job = attempt(
        script="train.py --lr 0.1",
        args=["a b"],
        flags={"epochs": 3},
        env_variables={"MINE": True, "GONE": None},
        secrets=["HF_TOKEN"],
        instance_type="a100.2gpu",
        n_workers=2,
        grace_s=5,
    )
    assert plans(job, grant=((0, 1), (2, 3)))[1] == WorkerPlan(
        job="train-1",
        attempt=2,
        worker=1,
        n_workers=2,
        processes_per_worker=2,
        type="pytorch2",
        command=["/home/me/proj/train.py", "--lr", "0.1", "a b", "--epochs=3"],
        python="/venv/bin/python",
        environment={
            "PATH": "/bin",
            "SHELL_SECRET": "of-the-shell",
            "GLOO_SOCKET_IFNAME": "lo",
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "MINE": "True",
            "HF_TOKEN": "value-of-HF_TOKEN",
        },
        user_variables=["HF_TOKEN", "MINE"],
        secrets=["HF_TOKEN"],
        working_dir="/home/me/proj",
        master_addr="127.0.0.1",
        master_port=12345,
        gpus=["2", "3"],
        cores=8,
        checkpoint_dir="/data/jobs/id/checkpoints",
        moves_damaged=True,
        snapshot=None,
        keep_free_bytes=256 * 2**20,
        log_file=None,  # in place all workers append to one train.log, which worker 0 tails
        local_rank_argument=None,
        local_rank_auto=True,
        rank_runner=True,
        grace_s=5,
        log_limit_bytes=10 * 2**30 // (2 * 2 * 3),  # attempt 2 is one of three for infrastructure
    )


def test_there_is_one_plan_per_worker_in_order() -> None:
    assert [p.worker for p in plans(attempt(n_workers=3), grant=((), (), ()))] == [0, 1, 2]


# --- where it runs


@pytest.mark.parametrize(
    ("spec", "caller", "expected"),
    [
        ({}, "/home/me", "/home/me"),
        ({"working_dir": "/elsewhere"}, "/home/me", "/elsewhere"),
        ({"working_dir": "sub/../other"}, "/home/me", "/home/me/other"),
        ({"script": "/code/train.py"}, None, "/code"),
        ({"script": "echo hi"}, None, "/"),
    ],
)
def test_in_place_the_working_dir_is_as_asked_or_the_callers_or_the_scripts(
    spec: dict[str, Any], caller: str | None, expected: str
) -> None:
    assert first(attempt(submitter=Submitter(working_dir=caller), **spec)).working_dir == expected


def test_a_relative_script_counts_from_the_caller_whatever_the_working_dir() -> None:
    assert first(attempt(script="src/train.py", working_dir="/tmp")).command == [
        "/home/me/proj/src/train.py"
    ]


def test_in_a_snapshot_paths_are_relative_to_its_root_and_each_worker_has_its_own_log_file() -> (
    None
):
    both = plans(
        attempt(SNAPSHOT, script="/home/me/proj/src/train.py x", n_workers=2), grant=((), ())
    )
    assert [p.command for p in both] == [["src/train.py", "x"]] * 2
    assert [p.working_dir for p in both] == ["src", "src"]
    assert [p.snapshot for p in both] == ["/data/snapshots/0.tar.gz"] * 2
    assert [p.log_file for p in both] == ["train.log"] * 2


def test_a_relative_checkpoint_dir_counts_from_the_caller() -> None:
    assert first(attempt(checkpoint_dir="ckpt")).checkpoint_dir == "/home/me/proj/ckpt"


def test_a_tilde_is_the_home_of_the_submitter_not_of_the_server() -> None:
    mine = Submitter(environment={"HOME": "/home/me"})
    assert (
        first(attempt(submitter=mine, script="/t.py", checkpoint_dir="~/ckpt")).checkpoint_dir
        == "/home/me/ckpt"
    )


# --- what runs it


def test_a_command_has_no_interpreter() -> None:
    specs: list[dict[str, Any]] = [
        {"script": "bash run.sh"},
        {"script": "train.py", "type": "binary"},
    ]
    for spec in specs:
        assert first(attempt(**spec)).python is None


def test_a_request_that_names_no_interpreter_gets_the_servers() -> None:
    assert first(attempt(submitter=Submitter(working_dir="/"))).python == "/server/bin/python"


def test_a_conda_environment_comes_first_on_the_path() -> None:
    order = first(attempt(conda_env="torch"), conda=Path("/opt/conda/envs/torch"))
    assert order.python == "/opt/conda/envs/torch/bin/python"
    assert order.environment["PATH"] == "/opt/conda/envs/torch/bin:/bin"
    assert order.environment["CONDA_PREFIX"] == "/opt/conda/envs/torch"


@pytest.mark.parametrize(
    ("use_env", "argument", "auto"),
    [(None, None, True), (True, None, False), (False, "--local_rank", True)],
)
def test_pytorch_use_env(use_env: bool | None, argument: str | None, auto: bool) -> None:
    order = first(attempt(pytorch_use_env=use_env))
    assert (order.local_rank_argument, order.local_rank_auto) == (argument, auto)


@pytest.mark.parametrize(
    ("use_env", "argument"), [(None, "--local_rank"), (False, "--local_rank"), (True, None)]
)
def test_type_pytorch_asks_for_the_argument_unless_told_otherwise(
    use_env: bool | None, argument: str | None
) -> None:
    assert first(attempt(type="pytorch", pytorch_use_env=use_env)).local_rank_argument == argument


@pytest.mark.parametrize("use_env", [None, False, True])
def test_an_elastic_agent_s_ranks_share_one_command_line(use_env: bool | None) -> None:
    order = first(attempt(type="pytorch_elastic", pytorch_use_env=use_env))
    assert (order.local_rank_argument, order.local_rank_auto) == (None, False)


def test_elastic_bounds_reach_the_agents() -> None:
    default = first(
        attempt(type="pytorch_elastic", n_workers=3, elastic_min_workers="default"),
        grant=((), (), ()),
    )
    assert (default.elastic_min_workers, default.elastic_max_restarts) == (3, 5)
    given = attempt(
        type="pytorch_elastic", n_workers=3, elastic_min_workers=1, elastic_max_restarts=0
    )
    order = first(given, grant=((), (), ()))
    assert (order.elastic_min_workers, order.elastic_max_restarts) == (1, 0)


@pytest.mark.parametrize("max_retry", [None, 3])
@pytest.mark.parametrize("max_infrastructure_retry", [0, 1, 3, 100])
def test_the_logs_of_all_workers_in_all_attempts_share_the_limit_of_the_job(
    max_retry: int | None, max_infrastructure_retry: int
) -> None:
    limit = OPTIONS.settings.log_limit_bytes
    job = attempt(
        n_workers=2, max_retry=max_retry, max_infrastructure_retry=max_infrastructure_retry
    )
    last = 1 + (max_retry or 0) + max_infrastructure_retry
    shares = [first(replace(job, number=number)).log_limit_bytes for number in range(1, last + 1)]
    assert limit - 2 * last <= 2 * sum(shares) <= limit
    assert shares[0] == limit // (
        2 * (1 + (max_retry or 0)) * (2 if max_infrastructure_retry else 1)
    )


def test_the_logs_of_a_job_that_makes_progress_keep_to_the_limit_in_any_number_of_attempts() -> (
    None
):
    job = attempt(n_workers=2, max_retry=2, max_infrastructure_retry=1, retry_reset_steps=1)
    shares = [first(replace(job, number=number)).log_limit_bytes for number in range(1, 200)]
    assert sum(shares[:4]) * 2 <= OPTIONS.settings.log_limit_bytes // 2
    assert (
        0.98 * OPTIONS.settings.log_limit_bytes
        < sum(shares) * 2
        <= OPTIONS.settings.log_limit_bytes
    )


def test_the_rank_runner_can_be_turned_off_by_the_job() -> None:
    assert first(attempt(env_variables={"CLIENT_LIB_RANK_RUNNER": 0})).rank_runner is False


# --- what it sees


def test_the_loopback_device_is_gloos_unless_set() -> None:
    assert (
        first(attempt(env_variables={"GLOO_SOCKET_IFNAME": "eth0"})).environment[
            "GLOO_SOCKET_IFNAME"
        ]
        == "eth0"
    )
    shell = Submitter(environment={"GLOO_SOCKET_IFNAME": "eth1"}, working_dir="/")
    assert first(attempt(submitter=shell)).environment["GLOO_SOCKET_IFNAME"] == "eth1"
    mac = Machine("mac", "lo0", 8, 16.0, "b")
    assert first(attempt(), machine=mac).environment["GLOO_SOCKET_IFNAME"] == "lo0"


def test_the_users_own_master_wins() -> None:
    order = first(attempt(env_variables={"MASTER_ADDR": "localhost", "MASTER_PORT": 29500}))
    assert (order.master_addr, order.master_port) == ("localhost", 29500)


@pytest.mark.parametrize("port", ["0", "65536", "http", "-1", "", "1.5"])
def test_a_master_port_that_is_none_is_refused(port: str) -> None:
    with pytest.raises(InvalidRequest, match="is no port"):
        plan.own_port(JobSpec(script="t.py", env_variables={"MASTER_PORT": port}))


def test_visible_devices_of_the_user_bound_what_is_granted_and_are_not_handed_on() -> None:
    order = plans(
        attempt(env_variables={"CUDA_VISIBLE_DEVICES": "1,2"}, instance_type="a100.1gpu"),
        grant=((2,),),
    )[0]
    assert order.gpus == ["2"]
    assert "CUDA_VISIBLE_DEVICES" not in order.user_variables
    assert "CUDA_VISIBLE_DEVICES" not in order.environment


# --- what is shown


def test_render_shows_no_secret_and_nothing_of_the_submitters_environment() -> None:
    job = attempt(secrets=["WANDB_API_KEY"], env_variables={"MY_PASSWORD": "hunter2", "LR": 1})
    text = shown(job, []).model_dump_json()
    for hidden in ("value-of-WANDB_API_KEY", "hunter2", "of-the-shell"):
        assert hidden not in text
    environment = shown(job, []).objects[0]["environment"]
    assert environment["WANDB_API_KEY"] == environment["MY_PASSWORD"] == "***"
    assert environment["LR"] == "1"
    assert (
        shown(job, []).objects[0]["inherited_variables"]
        == "2 of the submitter's own environment, not shown"
    )


def test_render_is_the_same_twice_and_leaves_its_input_alone() -> None:
    job = attempt(instance_type="a100.2gpu", n_workers=2)
    before = repr(job)
    assert shown(job, GPUS) == shown(job, GPUS)
    assert repr(job) == before


def test_render_names_what_is_chosen_at_the_start() -> None:
    worker = shown(attempt(instance_type="a100.2gpu"), GPUS).objects[0]
    assert worker["gpus"] == "2 of GPU 0, 1, 2, 3, chosen at the start"
    assert worker["master_port"] == "a free one, chosen at the start"


@pytest.mark.parametrize(
    ("fields", "moves"),
    [
        ({}, True),
        ({"checkpoint_dir": "ckpt"}, False),
        ({"checkpoint_dir": "ckpt", "checkpoint_params": {"damaged": "aside"}}, True),
        ({"checkpoint_params": {"damaged": "leave"}}, False),
        ({"checkpoint_params": {"keep": 3}}, True),
    ],
)
def test_a_damaged_checkpoint_is_moved_in_the_folder_of_the_job(
    fields: dict[str, Any], moves: bool
) -> None:
    plan = first(attempt(**fields))
    assert plan.moves_damaged is moves
    assert plan.keep_checkpoints == fields.get("checkpoint_params", {}).get("keep")


@pytest.mark.parametrize(
    ("metric", "planned"),
    [("eval/acc", "max:eval/acc"), ("val_loss", "min:val_loss"), ("max:number", "max:number")],
)
def test_the_best_checkpoint_has_its_direction(metric: str, planned: str) -> None:
    params = {"keep": 3, "keep_best": metric}
    assert first(attempt(checkpoint_params=params)).keep_best == planned
    assert first(attempt(checkpoint_params={"keep": 3})).keep_best is None
