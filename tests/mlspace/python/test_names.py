"""The module-level names of the platform: they exist, behave as there, and cost
nothing until they are used.
"""

import importlib.metadata
import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import client_lib
from client_lib import Client, InvalidRequest, Job, JobType, NotFound, NotSupported
from client_lib.spec.job import REFUSED_TYPES


def test_the_room_is_loaded_by_its_names_alone() -> None:
    code = (
        "import sys, client_lib; client_lib.Job; client_lib.get_job\n"
        "room = lambda: [name for name in sys.modules if name.startswith('client_lib.mlspace.')]\n"
        "print(room()); client_lib.PriorityClass; client_lib.RegionMT; print(room())"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert shown.splitlines() == ["[]", "['client_lib.mlspace.constants']"]


def test_the_distribution_s_version_is_found_by_the_module_s_name() -> None:
    assert importlib.metadata.version("client_lib") == client_lib.__version__


def test_enums_are_their_values_in_json_and_in_text() -> None:
    assert client_lib.RegionEnum.SR002_MT == "SR002-MT"
    assert (
        json.dumps([client_lib.RegionMT.SR006, client_lib.PriorityClass.high])
        == '["SR006", "high"]'
    )
    assert f"{client_lib.RegionMT.SR004} {client_lib.JobHealthAction.restart}" == "SR004 restart"
    assert client_lib.ClusterType("MT") is client_lib.ClusterType.MT
    assert isinstance(client_lib.PriorityClass, type)
    assert {member.value for member in Job.Type} == {*map(str, JobType), *REFUSED_TYPES}


def test_health_params_of_the_platform_are_those_of_the_spec() -> None:
    health = client_lib.JobHealthParams(
        log_period=30,
        action=client_lib.JobHealthAction.restart,
        sub_actions=[client_lib.JobHealthSubAction.notify],
    )
    job = Job(script="train.py", health_params=health, region=client_lib.RegionEnum.SR002_MT)
    assert json.loads(job.spec.model_dump_json(exclude_unset=True)) == {
        "script": "train.py",
        "health_params": {"log_period": 30, "action": "restart", "sub_actions": ["notify"]},
        "region": "SR002-MT",
    }


# --- verbs


def test_a_failed_submit_returns_its_sentence_where_a_script_asks_for_that(
    client: Client, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(script="missing.py", client=client)
    with pytest.raises(InvalidRequest):
        job.submit()
    # what a script sets, for the length of this test
    monkeypatch.setattr(Job, "submit_raises", False)
    assert job.submit().startswith("Error: script: there is no ")
    assert not job.job_name
    with pytest.raises(InvalidRequest):
        client_lib.remote(instance_type="no-such-type", client=client)(print).submit()


def test_jobs_prints_created_name_and_status_and_nothing_else(
    client: Client, hello: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = [
        Job(script=str(hello), name=name, region=region)
        for name, region in (("b-1", "SR006"), ("a-1", None))
    ]
    for job in ours:
        job.submit()
        job.wait(30)
    capsys.readouterr()
    client_lib.jobs(region="SR006")
    # jobs of other tests among them
    shown = [line.split(" : ") for line in capsys.readouterr().out.splitlines()]
    mine = [(created, name, status) for created, name, status in shown if name in ("a-1", "b-1")]
    assert [line[1:] for line in mine] == [("a-1", "Completed"), ("b-1", "Completed")]
    assert mine[0][0] == f"{ours[1].info().created_at:%Y-%m-%dT%H:%M:%SZ}"
    client_lib.jobs(region="SR003")
    elsewhere = [line.split(" : ")[1] for line in capsys.readouterr().out.splitlines()]
    assert "a-1" in elsewhere
    assert "b-1" not in elsewhere
    for job in ours:
        job.delete()


def test_verbs_by_name_say_what_a_job_says(
    client: Client, hello: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Job(script=str(hello), instance_type="cpu.1C.1G")
    job.submit()
    job.wait(30)
    name = str(job.job_name)
    assert client_lib.get_job_status(name, region="SR006") == "Job status=Completed"
    assert client_lib.job_status(name) == "Job status=Completed"
    for tail in (10, 0, None):
        capsys.readouterr()
        assert client_lib.logs(name, "SR006", tail=tail, verbose=False) is None
        assert capsys.readouterr().out == "hello 0 1\n"
    assert client_lib.kill(name, region="SR006") == f'Job "{name}" deleted'


@pytest.mark.parametrize("verb", ["logs", "kill", "get_job_status", "job_status"])
def test_a_job_that_is_not_there_is_an_error(client: Client, verb: str) -> None:
    with pytest.raises(NotFound, match="lm-mpi-job-none"):
        getattr(client_lib, verb)("lm-mpi-job-none")


# --- environment


def test_the_environment_has_the_variables_of_the_platform_s_notebooks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = {
        "GWAPI_ADDR": "gw:80",
        "GWAPI_KEY": "k",
        "GWAPI_V2_URL": "u",
        "CLUSTER_KEY": "c",
        "WORKSPACE_ID": "w",
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("NAMESPACE", "ns")
    found = client_lib.Environment()
    assert [found.GW_API_ADDR, found.GW_API_KEY, found.GWAPI_V2_URL, found.CLUSTER_KEY] == [
        "gw:80",
        "k",
        "u",
        "c",
    ]
    assert (found.NAMESPACE, found.WORKSPACE_ID) == ("ns", "w")
    assert "'k'" not in repr(found)


@pytest.mark.parametrize(
    ("prefix", "namespace"),
    [
        ("/x/ai01/lab", "ai01"),
        ("/x/notebook/ai01/lab", "ai01"),
        ("", None),
        ("/x", None),
        ("/x/notebook", None),
    ],
)
def test_the_namespace_falls_back_to_the_prefix(
    prefix: str, namespace: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NAMESPACE", raising=False)
    monkeypatch.setenv("NB_PREFIX", prefix)
    assert vars(client_lib.Environment())["NAMESPACE"] == namespace


def test_the_active_environment_is_reassigned_and_chooses_no_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # what a script sets below, for the length of this test
    monkeypatch.setattr(client_lib, "environment", client_lib.environment)
    monkeypatch.setenv("GWAPI_ADDR", "http://127.0.0.1:9")
    monkeypatch.setenv("NAMESPACE", "other")
    client_lib.environment = client_lib.Environment()
    assert client_lib.environment.NAMESPACE == "other"
    assert Client().config.endpoint is None


# --- outside the product's reach


@pytest.mark.parametrize(
    ("name", "arguments", "instead"),
    [
        ("ImageBuildJob", {"from_image": "a", "requirements_file": "req.txt"}, "requirements="),
        ("ImageBuildJob", {"from_image": "a", "poetrylock_file": "poetry.lock"}, "poetry install"),
        ("S3CopyJob", {"path": "/a", "bucket": "b", "recursive": True}, "aws s3 cp"),
        (
            "copy_from_nfs",
            {"source_path": "/a", "from_region": "SR003", "destination_path": "/b"},
            "rsync",
        ),
        ("get_transfer_data_logs", {"id": "1"}, "rsync"),
        ("save_aws_credentials", {"ns": "n", "key": "AKIA", "secret": "hidden"}, "secrets="),
    ],
)
def test_what_is_not_here_says_what_to_use_instead(
    name: str, arguments: dict[str, Any], instead: str
) -> None:
    with pytest.raises(NotSupported, match=f"^{name}") as caught:
        getattr(client_lib, name)(**arguments)
    assert instead in str(caught.value.hint)
    assert "hidden" not in str(caught.value)


def test_update_says_the_version_and_the_command() -> None:
    assert client_lib.__version__ in client_lib.update()
    assert "pip install" in client_lib.update()


# --- arguments

OF_THE_PLATFORM = (
    "script base_image instance_type region type n_workers processes_per_worker job_desc flags "
    "env_variables conda_env pytorch_use_env elastic_min_workers elastic_max_workers "
    "elastic_max_restarts max_retry priority_class queue_name allocation_name checkpoint_dir "
    "logs_dir health_params internet shm_size_class tmp_storage include_nodes exclude_nodes "
    "stop_timer cuda11 preflight_check forbid_s3 forbid_internet in_communal_cluster n_gpus "
    "warm_cache detached memory_limit cpu_limit spark_executor_memory"
)


def test_every_argument_of_the_platform_is_an_explicit_keyword() -> None:
    parameters = inspect.signature(
        Job.__init__
    ).parameters  # as its users' tools look which ones they may pass
    assert [name for name in OF_THE_PLATFORM.split() if name not in parameters] == []
    assert not [p for p in parameters.values() if p.kind is inspect.Parameter.VAR_KEYWORD]


def test_tools_pass_everything_whatever_the_type() -> None:
    """The fields that the platform's own tools send on every submit, with nothing chosen."""
    unset = dict.fromkeys(set(OF_THE_PLATFORM.split()) - {"script", "base_image", "type"})
    always = {
        "flags": {},
        "env_variables": {},
        "stop_timer": 0,
        "pytorch_use_env": False,
        "n_workers": 1,
    }
    defaults = dict.fromkeys(
        ["processes_per_worker", "elastic_min_workers", "elastic_max_workers"], "default"
    )
    for kind in JobType:
        job = Job(script="train.py", base_image="image", type=kind, **(unset | always | defaults))  # type: ignore[arg-type]
        assert job.spec.type is kind
