"""`/public/v2/jobs`: which jobs a list has, and what of a request arrives in the spec. The answers
are in the golden files.
"""

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from client_lib.spec.job import JobSpec
from client_lib.spec.request import CodeInPlace
from client_lib.spec.states import Reason, State
from client_lib.spec.wire import JobInfo
from server_stub.http.api.public_v2 import translate
from server_stub.runtimes.fields import ON_CPU
from tests.http.conftest import Running
from tests.kit.bounds import Bounds
from tests.mlspace.rest.conftest import IMAGE, JOBS, Platform, act, until


def spec_of(server: Running, name: str) -> JobSpec:
    return next(
        attempt.spec for attempt in server.runtime.attempts.values() if attempt.job_name == name
    )


# --- run


def test_parameters_arrive_in_the_spec(server: Running, ann: Platform) -> None:
    name = ann.created(
        region="SR005",
        n_workers=2,
        processes_per_worker=3,
        job_desc="#tag | x",
        conda_env="jupyter",
        flags={"epochs": 10, "amp": True, "lr": 0.1, "mode": "a b"},
        env_variables={"A": 1, "B": None, "C": "x"},
        max_retry=3,
        max_infrastructure_retry=0,
        priority_class="high",
        queue_name="q",
        allocation_name="a",
        internet=False,
        checkpoint_dir="/home/jovyan/c",
        logs_dir="/home/jovyan/l",
        shm_size_class="large",
        tmp_storage="small",
        include_nodes=["n1"],
        exclude_nodes=["n2"],
        stop_timer=5,
        health_params={"log_period": 20, "action": "restart", "sub_actions": ["notify"]},
    )
    spec = spec_of(server, name).model_dump(mode="json", exclude_unset=True)
    assert spec == {
        "script": "sleep 1000",
        "base_image": IMAGE,
        "instance_type": "cpu.2C.8G",
        "type": "binary",
        "region": "SR005",
        "n_workers": 2,
        "processes_per_worker": 3,
        "job_desc": "#tag | x",
        "conda_env": "jupyter",
        "flags": {"epochs": 10, "amp": True, "lr": 0.1, "mode": "a b"},
        "env_variables": {"A": 1, "B": None, "C": "x"},
        "max_retry": 3,
        "max_infrastructure_retry": 0,
        "priority_class": "high",
        "queue_name": "q",
        "allocation_name": "a",
        "internet": False,
        "checkpoint_dir": "/home/jovyan/c",
        "logs_dir": "/home/jovyan/l",
        "shm_size_class": "large",
        "tmp_storage": "small",
        "include_nodes": ["n1"],
        "exclude_nodes": ["n2"],
        "stop_timer": 5,
        "health_params": {"log_period": 20, "action": "restart", "sub_actions": ["notify"]},
    }


def test_what_tools_send_with_every_submit_is_taken(ann: Platform) -> None:
    ann.created(
        pytorch_use_env=True,
        elastic_min_workers="default",
        elastic_max_workers=1,
        stop_timer=0,
        elastic_max_restarts=5,
        flags={},
        env_variables=None,
        queue_name=None,
        cuda11=True,
        preflight_check=False,
        forbid_s3=False,
        in_communal_cluster=True,
        processes_per_worker="default",
    )


def test_forbid_internet_is_the_old_spelling_of_internet(server: Running, ann: Platform) -> None:
    name = ann.created(forbid_internet=True)
    assert spec_of(server, name).internet is False


def test_use_env_is_read_by_pytorch2_alone(server: Running, ann: Platform, tmp_path: Path) -> None:
    commands = {
        kind: ann.created(script="python x", type=kind, pytorch_use_env=True)
        for kind in ("binary", "pytorch2")
    }
    assert spec_of(server, commands["binary"]).pytorch_use_env is None
    assert spec_of(server, commands["pytorch2"]).pytorch_use_env is True


# --- list


def test_filters_by_status(server: Running, ann: Platform) -> None:
    names = [ann.created() for _ in range(5)]
    pending, running, done, failed, killed = names
    act(server, running, "runs")
    act(server, done, "end")
    act(server, failed, "end", Reason.EXIT_CODE, "rank 0 ended with exit code 1")
    ann("DELETE", f"{JOBS}/{killed}?region=SR006")
    words = ["Pending", "Running", "Completed", "Failed", "Deleted"]
    for name, word in zip(names, words, strict=True):
        until(ann, name, word.lower())
    for name, word in zip(names, words, strict=True):
        assert ann.names(status=word) == [name]
    assert ann.names(status=["Pending", "Running"]) == [running, pending]
    assert ann.names(status="Succeeded") == [done]
    assert ann.names(status=["Stopped", "Terminated"]) == [killed]
    assert ann.names(status="Completing") == []


def test_pages_are_newest_first_and_count_all(ann: Platform) -> None:
    names = [ann.created(job_desc=str(number)) for number in range(5)][::-1]
    assert ann.names(limit=2) == names[:2]
    assert ann.names(limit=2, offset=3) == names[3:]
    assert (ann.listed(limit=2)["count"], ann.listed(offset=9)["jobs"]) == (5, [])
    assert ann.names(limit=6000, offset=0) == names


def test_a_page_of_large_jobs_is_shorter_and_the_next_offset_goes_on(
    ann: Platform, bounds: Bounds
) -> None:
    bounds("server_stub.service.lookup", SEARCH_CHARACTERS=20_000)
    names = [ann.created(job_desc="x" * 9000) for _ in range(5)][::-1]
    assert ann.names() == names[:2]
    assert ann.listed()["count"] == 5
    assert ann.names(offset=2) == names[2:4]


def test_a_region_that_no_job_can_have_is_refused(ann: Platform) -> None:
    assert ann("GET", f"{JOBS}?region={'x' * 256}").status_code == 422


def test_filters_by_region_queue_and_allocation(ann: Platform) -> None:
    plain = ann.created(region="SR006")
    placed = ann.created(region="SR003", queue_name="team", allocation_name="big")
    assert ann.names() == [placed, plain]  # an absent region is every region
    assert ann.names(region="SR006") == [plain]
    assert ann.names(queue_id="team") == ann.names(allocation_name="big") == [placed]
    assert ann.names(queue_id="default") == ann.names(allocation_name="default") == [plain]
    assert ann.names(queue_id="other") == []


def test_filters_by_time_as_the_command_line_writes_it(ann: Platform) -> None:
    name = ann.created()
    assert ann.names(start_date="2026-03-31 00:00:00") == [name]
    assert ann.names(start_date="2026-03-31T00:00:00+03:00", end_date="") == [name]
    assert ann.names(start_date="2999-01-01 00:00:00") == []
    assert ann.names(end_date="2020-01-01 00:00:00") == []


def test_a_job_of_the_sdk_is_in_every_region(server: Running, ann: Platform) -> None:
    server.as_user("ann").submit(name="of-the-sdk")
    (job,) = ann.listed(region="SR008")["jobs"]
    assert (job["job_name"], job["region"], job["job_desc"], job["instance_type"]) == (
        "of-the-sdk",
        "SR008",
        "",
        "",
    )


# --- restart, and GPUs


def test_restart_is_a_new_job_of_the_same_spec(server: Running, ann: Platform) -> None:
    """With the values of its secrets, which no answer has."""
    name = ann.created(flags={"epochs": 3}, env_variables={"WANDB_API_KEY": "s"})
    again = ann("POST", f"{JOBS}/restart", json={"job_name": name}).json()["job_name"]
    assert spec_of(server, again) == spec_of(server, name)


@pytest.mark.parametrize(
    ("fields", "notices", "count"),
    [
        ({"instance_type": "a100.2gpu", "n_workers": 2}, [], 4),
        (
            {"instance_type": "a100.2gpu"},
            [f"instance_type='a100.2gpu' asks for 2 GPUs per worker: {ON_CPU}"],
            0,
        ),
        ({"instance_type": "a100.2gpu", "type": "nogpu"}, [], 0),
    ],
)
def test_a_job_that_runs_on_the_cpu_has_no_gpus(
    fields: dict[str, Any], notices: list[str], count: int
) -> None:
    info = JobInfo(
        name="train",
        id="a" * 32,
        owner="ann",
        version=1,
        runtime="local",
        state=State.RUNNING,
        reason=Reason.RUNNING,
        spec=JobSpec(script="train.py", **fields),
        code=CodeInPlace(),
        created_at=datetime.now(timezone.utc),
        notices=notices,
    )
    assert translate.gpu_count(info, {}) == count
