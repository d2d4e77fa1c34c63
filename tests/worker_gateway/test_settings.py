"""The plan of one worker, made by its agent from the plan that all workers share."""

from typing import Any

import pytest

from client_lib.launcher_protocol.plan import WorkerPlan, from_json
from client_lib.worker.function_runner import PAYLOAD
from client_lib.worker.pod.settings import PodFiles, PodSettings, own_plan

SHARED = WorkerPlan(
    job="train",
    attempt=2,
    worker=-1,
    n_workers=3,
    processes_per_worker=2,
    type="pytorch2",
    command=["train.py", "--deep"],
    python="python3",
    environment={"MINE": "from the spec"},
    user_variables=["MINE"],
    working_dir=".",
    master_addr="",
    master_port=0,
    gpus=None,
    cores=4,
    checkpoint_dir="/checkpoints",
    log_file="train.log",
    outputs=["*.bin"],
)
FILES = PodFiles()


def pod(**given: Any) -> PodSettings:
    known: dict[str, Any] = {
        "server_url": "https://server/prefix/",
        "job": "train",
        "attempt": 2,
        "worker": 1,
        "n_workers": 3,
        "spool_bytes": 2**20,
        "snapshot": "ab",
        "function": False,
        "conda_prefix": None,
        "barrier_port": 1,
        "termination_log": "/dev/null",
        "stay_s": 1.0,
        "claim_s": 1.0,
        "leave_s": 0.5,
        "uid": "uid",
        "name": "train-worker-0",
        "master_addr": "train-master-0",
        "master_port": 23456,
        "environment": {},
    }
    return PodSettings(**(known | given))


def test_it_knows_which_worker_it_is_and_where_the_master_is() -> None:
    order = own_plan(SHARED, pod(), FILES, "/run/code")
    assert (order.worker, order.master_addr, order.master_port) == (1, "train-master-0", 23456)
    assert (order.snapshot, order.command) == ("/run/code", ["train.py", "--deep"])
    assert from_json(order.to_json()) == order
    assert SHARED.environment == {"MINE": "from the spec"}


def test_ranks_see_the_images_environment_and_nothing_of_the_operators() -> None:
    image = {
        "PATH": "/opt/bin",
        "MINE": "from the image",
        "SECRET": "by envFrom",
        "RANK": "1",
        "WORLD_SIZE": "6",
    }
    image |= {
        "PET_NNODES": "3",
        "CLIENT_LIB_POD_UID": "uid",
        "MASTER_ADDR": "train-master-0",
        "LOCAL_RANK": "0",
    }
    order = own_plan(SHARED, pod(environment=image), FILES)
    assert order.environment == {
        "PATH": "/opt/bin",
        "MINE": "from the spec",
        "SECRET": "by envFrom",
    }


def test_a_conda_environment_is_active() -> None:
    image = {"PATH": "/opt/bin", "PYTHONHOME": "/elsewhere"}
    order = own_plan(SHARED, pod(environment=image, conda_prefix="/opt/conda/envs/torch"), FILES)
    assert order.environment == {
        "MINE": "from the spec",
        "PATH": "/opt/conda/envs/torch/bin:/opt/bin",
        "CONDA_PREFIX": "/opt/conda/envs/torch",
        "CONDA_DEFAULT_ENV": "torch",
    }


@pytest.mark.parametrize(
    ("worker", "snapshot", "minds"),
    [(0, None, True), (1, None, False), (0, "ab", True), (1, "ab", True)],
)
def test_in_place_one_worker_minds_the_folder_that_all_share(
    worker: int, snapshot: str | None, minds: bool
) -> None:
    order = own_plan(SHARED, pod(worker=worker, snapshot=snapshot), FILES)
    assert (order.log_file, order.outputs) == (("train.log", ["*.bin"]) if minds else (None, []))


def test_a_function_is_called_by_the_runner_that_was_put_here() -> None:
    function = ("/run/function", "/run/function_runner.py")
    order = own_plan(
        SHARED._replace(command=["function_runner.py"]), pod(function=True), FILES, None, function
    )
    assert order.command == ["/run/function_runner.py"]
    assert order.environment[PAYLOAD] == "/run/function"


def test_the_spool_is_many_segments_and_the_launcher_removes_none() -> None:
    order = own_plan(SHARED, pod(spool_bytes=2**20), FILES)
    assert order.segment_bytes == 2**16
    assert order.log_limit_bytes > 2**60


def test_outputs_go_to_the_server_where_there_is_one() -> None:
    url = "https://server/prefix/api/v1/jobs/train/attempts/2/workers/1/outputs"
    assert own_plan(SHARED, pod(), FILES).outputs_to == url
    assert own_plan(SHARED, pod(server_url=None), FILES).outputs_to is None
