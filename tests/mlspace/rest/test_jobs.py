"""`/public/v2/jobs`: shapes, statuses, dates and quirks, field by field."""

import re
import time
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
from tests.mlspace.rest.conftest import COMMAND, IMAGE, JOBS, Platform

ITEM = {
    *(
        "uid",
        "job_name",
        "status",
        "region",
        "instance_type",
        "job_desc",
        "job_author",
        "created_dt",
        "updated_dt",
    ),
    *(
        "completed_dt",
        "cost",
        "gpu_count",
        "duration",
        "namespace",
        "queue_name",
        "queue_id",
        "allocation_name",
    ),
    "allocation_id",
}
ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")


def act(server: Running, name: str, what: str, *args: Any, **options: Any) -> str:
    """Let the runtime say something about a job; the job's id."""
    job_id = next(id for id, attempt in server.runtime.attempts.items() if attempt.job_name == name)
    server.call(lambda: getattr(server.runtime, what)(job_id, *args, **options))
    return job_id


def until(user: Platform, name: str, status: str) -> dict[str, Any]:
    deadline = time.monotonic() + 10
    while (shown := user.status(name))["status"] != status:
        assert time.monotonic() < deadline, shown
        time.sleep(0.005)
    return shown


def spec_of(server: Running, name: str) -> JobSpec:
    return next(
        attempt.spec for attempt in server.runtime.attempts.values() if attempt.job_name == name
    )


# --- run


def test_run_answers_name_status_and_time(ann: Platform) -> None:
    answer = ann.run()
    assert answer.status_code == 200
    # exactly: with a charset `mls` takes it for text
    assert answer.headers["Content-Type"] == "application/json"
    body = answer.json()
    assert body.keys() == {"job_name", "status", "created_at"}
    assert body["status"] == "Pending"
    assert abs(body["created_at"] - time.time()) < 60
    assert isinstance(body["created_at"], int)
    assert UUID.fullmatch(body["job_name"].removeprefix("lm-mpi-job-"))


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


@pytest.mark.parametrize("kind", [None, "horovod", "spark", "cce"])
def test_a_type_without_a_launcher_here_is_refused_with_a_sentence(
    kind: str | None, ann: Platform
) -> None:
    body = {**COMMAND, "type": kind}
    if kind is None:
        del body["type"]
    answer = ann("POST", JOBS, json=body)
    assert answer.status_code == 400
    assert answer.json().keys() == {"error_code", "error_message"}
    assert f"{kind or 'horovod'!r}" in answer.json()["error_message"]
    assert ("absent" in answer.json()["error_message"]) == (kind is None)


@pytest.mark.parametrize(
    ("wrong", "loc", "kind"),
    [
        ({"instance_type": ...}, ["body", "instance_type"], "missing"),
        ({"script": ...}, ["body", "script"], "missing"),
        ({"base_image": ...}, ["body", "base_image"], "missing"),
        ({"n_gpus": 4}, ["body", "n_gpus"], "extra_forbidden"),
        ({"type": "nonsense"}, ["body", "type"], "enum"),
        ({"n_workers": 0}, ["body", "n_workers"], "greater_than_equal"),
        ({"max_retry": 2}, ["body", "max_retry"], "greater_than_equal"),
        (
            {"health_params": {"log_period": 19}},
            ["body", "health_params", "log_period"],
            "greater_than_equal",
        ),
        ({"script": ""}, ["body", "script"], "string_too_short"),
    ],
)
def test_a_request_of_another_form_is_422(
    wrong: dict[str, Any], loc: list[str], kind: str, ann: Platform
) -> None:
    body = {name: value for name, value in (COMMAND | wrong).items() if value is not ...}
    answer = ann("POST", JOBS, json=body)
    assert answer.status_code == 422
    assert answer.headers["Content-Type"] == "application/json"
    (finding,) = answer.json()["detail"]
    assert finding.keys() == {"loc", "msg", "type"}  # never the value: it may be a secret
    assert (finding["loc"], finding["type"]) == (loc, kind)


def test_a_body_that_is_no_json_is_422(ann: Platform) -> None:
    answer = ann("POST", JOBS, data=b"{", headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["detail"][0]["type"]) == (422, "json_invalid")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"n_workers": 65}, "n_workers 65"),
        ({"health_params": {"log_period": 20}}, "sub_actions"),
        ({"env_variables": {"RANK": 1}}, "RANK"),
        ({"script": "a && b"}, "bash -c"),
    ],
)
def test_what_is_wrong_in_meaning_is_400_with_the_way_out(
    wrong: dict[str, Any], says: str, ann: Platform
) -> None:
    answer = ann.run(**wrong)
    assert (answer.status_code, answer.json()["error_code"]) == (400, 1)
    assert says in answer.json()["error_message"]


def test_any_region_is_accepted(ann: Platform) -> None:
    assert ann.run(region="lab").status_code == 200


# --- list


def test_an_item_has_every_key_and_no_null_but_the_end(server: Running, ann: Platform) -> None:
    name = ann.created(instance_type="a100plus.2gpu.80vG.24C.192G", n_workers=2, region="SR006")
    page = ann.listed(region="SR006")
    assert {key: page[key] for key in ("count", "status", "error_code", "error_message")} == {
        "count": 1,
        "status": "ok",
        "error_code": 0,
        "error_message": "",
    }
    (job,) = page["jobs"]
    assert job.keys() == ITEM
    assert [key for key, value in job.items() if value is None] == ["completed_dt"]
    assert ISO.fullmatch(job["created_dt"])
    assert ISO.fullmatch(job["updated_dt"])
    assert (job["gpu_count"], job["duration"], job["cost"]) == (4, "0s", "0")
    assert (job["job_name"], job["status"], job["job_author"], job["region"]) == (
        name,
        "Pending",
        "ann",
        "SR006",
    )
    act(server, name, "end")
    until(ann, name, "completed")
    (job,) = ann.listed()["jobs"]
    assert ISO.fullmatch(job["completed_dt"])
    assert re.fullmatch(r"\d+s", job["duration"])


def test_statuses_are_capitalised_in_lists_and_lower_case_by_name(
    server: Running, ann: Platform
) -> None:
    names = [ann.created() for _ in range(5)]
    pending, running, done, failed, killed = names
    act(server, running, "runs")
    act(server, done, "end")
    act(server, failed, "end", Reason.EXIT_CODE, "rank 0 ended with exit code 1")
    assert ann("DELETE", f"{JOBS}/{killed}?region=SR006").json()["status"] == "deleted"
    words = ["Pending", "Running", "Completed", "Failed", "Deleted"]
    for name, word in zip(names, words, strict=True):
        until(ann, name, word.lower())
        assert ann.names(status=word) == [name]
    listed = {job["job_name"]: job["status"] for job in ann.listed()["jobs"]}
    assert listed == dict(zip(names, words, strict=True))
    assert ann.names(status=["Pending", "Running"]) == [running, pending]
    assert ann.names(status="Succeeded") == [done]
    assert ann.names(status=["Stopped", "Terminated"]) == [killed]
    assert ann.names(status="Completing") == []


def test_a_status_that_is_none_is_422(ann: Platform) -> None:
    assert ann("GET", JOBS, params={"status": "running"}).status_code == 422


def test_a_job_that_is_being_stopped_is_terminating_in_lists_and_running_by_name(
    server: Running, ann: Platform
) -> None:
    server.runtime.stops_at_once = False
    name = ann.created()
    act(server, name, "runs")
    until(ann, name, "running")
    ann("DELETE", f"{JOBS}/{name}?region=SR006")
    assert ann.listed()["jobs"][0]["status"] == "Terminating"
    assert ann.names(status="Running") == [name]
    # `mls` follows logs only while it reads exactly this
    assert ann.status(name)["status"] == "running"
    act(server, name, "end", Reason.CANCELLED)
    until(ann, name, "deleted")


def test_pages_are_newest_first_and_count_all(ann: Platform) -> None:
    names = [ann.created(job_desc=str(number)) for number in range(5)][::-1]
    assert ann.names(limit=2) == names[:2]
    assert ann.names(limit=2, offset=3) == names[3:]
    assert (ann.listed(limit=2)["count"], ann.listed(offset=9)["jobs"]) == (5, [])
    assert ann.names(limit=6000, offset=0) == names
    assert [
        ann("GET", JOBS, params=wrong).status_code for wrong in ({"limit": 0}, {"offset": -1})
    ] == [422, 422]


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
    assert ann("GET", JOBS, params={"start_date": "yesterday"}).status_code == 422


def test_a_job_of_the_sdk_is_in_every_region(server: Running, ann: Platform) -> None:
    server.as_user("ann").submit(name="of-the-sdk")
    (job,) = ann.listed(region="SR008")["jobs"]
    assert (job["job_name"], job["region"], job["job_desc"], job["instance_type"]) == (
        "of-the-sdk",
        "SR008",
        "",
        "",
    )


# --- one job


def test_one_job_by_name(server: Running, ann: Platform) -> None:
    name = ann.created(region="SR004")
    shown = ann.status(name)
    assert shown.keys() == {
        *(
            "uid",
            "job_name",
            "status",
            "region",
            "created_at",
            "pending_at",
            "running_at",
            "completed_at",
        ),
        *("error_code", "error_message"),
    }
    assert UUID.fullmatch(shown["uid"])
    assert (shown["status"], shown["region"], shown["error_code"], shown["error_message"]) == (
        "pending",
        "SR004",
        0,
        "",
    )
    assert (shown["running_at"], shown["completed_at"]) == (0, 0)
    assert shown["created_at"] == shown["pending_at"] > 0
    act(server, name, "runs")
    assert until(ann, name, "running")["running_at"] > 0
    act(server, name, "end")
    assert until(ann, name, "completed")["completed_at"] > 0


def test_a_name_that_is_none_is_200_and_a_json_object(ann: Platform) -> None:
    answer = ann("GET", f"{JOBS}/nowhere")
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "application/json")
    assert (answer.json()["status"], answer.json()["error_message"]) == (
        "job not found",
        "job not found",
    )


def test_delete_is_a_cancel_and_the_job_stays_to_be_asked_for(ann: Platform) -> None:
    name = ann.created()
    answer = ann("DELETE", f"{JOBS}/{name}", params={"region": "SR006"}).json()
    assert answer.keys() == {"job_name", "deleted_at", "status", "error_code", "error_message"}
    assert (answer["status"], answer["error_code"]) == ("deleted", 0)
    assert re.fullmatch(r"\d{10}", answer["deleted_at"])  # a string, here alone
    until(ann, name, "deleted")
    assert ann.names() == [name]


def test_delete_of_a_name_that_is_none_is_200_and_says_so(ann: Platform) -> None:
    answer = ann("DELETE", f"{JOBS}/nowhere?region=SR006")
    assert (answer.status_code, answer.json()["status"]) == (200, "job not found")


@pytest.mark.parametrize(("method", "path"), [("DELETE", f"{JOBS}/x"), ("GET", f"{JOBS}/x/logs")])
def test_these_need_a_region(method: str, path: str, ann: Platform) -> None:
    answer = ann(method, path)
    assert (answer.status_code, answer.json()["detail"][0]["loc"]) == (422, ["query", "region"])


def test_restart_is_a_new_job(server: Running, ann: Platform) -> None:
    name = ann.created(flags={"epochs": 3}, env_variables={"WANDB_API_KEY": "s"})
    answer = ann("POST", f"{JOBS}/restart", json={"job_name": name})
    assert (answer.status_code, answer.json().keys()) == (200, {"job_name", "status", "created_at"})
    again = answer.json()["job_name"]
    assert again != name
    assert spec_of(server, again) == spec_of(server, name)


def test_restart_of_a_name_that_is_none_is_404(ann: Platform) -> None:
    answer = ann("POST", f"{JOBS}/restart", json={"job_name": "nowhere"})
    assert (answer.status_code, answer.json()) == (
        404,
        {"error_code": 1, "error_message": "not found"},
    )


def test_params_are_as_stored_and_without_secrets(ann: Platform) -> None:
    name = ann.created(
        region="SR006",
        n_workers=2,
        flags={"a": 1},
        env_variables={"WANDB_API_KEY": "geheim", "A": "b"},
    )
    answer = ann("GET", f"{JOBS}/{name}/params")
    given = answer.json()
    assert {key: given[key] for key in (*COMMAND, "region", "n_workers", "flags")} == {
        **COMMAND,
        "region": "SR006",
        "n_workers": 2,
        "flags": {"a": 1},
    }
    assert given["env_variables"] == {"WANDB_API_KEY": "***", "A": "b"}
    assert "geheim" not in answer.text


def test_pods_are_the_workers_with_the_master_first(server: Running, ann: Platform) -> None:
    name = ann.created(n_workers=3)
    pods = ann("GET", f"{JOBS}/elastic/{name}/pods").json()["pods"]
    assert [pod["job_version"] for pod in pods] == ["mpimaster-0", "mpiworker-0", "mpiworker-1"]
    assert {pod["status"] for pod in pods} == {"Pending"}
    assert pods[0].keys() == {
        *(
            "uid",
            "running_at",
            "completed_at",
            "updated_at",
            "status",
            "reason",
            "job_name",
            "job_version",
            "duration",
        )
    }
    act(server, name, "runs")
    until(ann, name, "running")
    assert ann("GET", f"{JOBS}/elastic/{name}/pods").json()["pods"][0]["status"] == "Running"


def test_nodes_and_preemptors(ann: Platform) -> None:
    name = ann.created()
    assert ann("GET", f"{JOBS}/{name}/nodes").json() == {"node_names": []}
    assert ann("GET", f"{JOBS}/{name}/preemptors").json() == {"preemptors": []}


@pytest.mark.parametrize(
    "path", ["x/params", "x/nodes", "x/preemptors", "elastic/x/pods", "x/logs?region=SR006"]
)
def test_what_hangs_on_a_name_that_is_none_is_404(path: str, ann: Platform) -> None:
    answer = ann("GET", f"{JOBS}/{path}")
    assert (answer.status_code, answer.json()) == (
        404,
        {"error_code": 1, "error_message": "not found"},
    )


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
