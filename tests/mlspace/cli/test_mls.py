"""The commands of `mls` that are about jobs, with real jobs: what they print and their exit codes.
Commands that need no job that runs are in test_exchanges.py.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kit.waiting import until
from tests.mlspace.cli.conftest import IMAGE, Done, Site
from tests.mlspace.cli.environments import VERSIONS
from tests.mlspace.rest.conftest import JOBS

pytestmark = pytest.mark.process
NAME = re.compile(r"lm-mpi-job-[0-9a-f-]{36}")
TYPES = ["binary", "binary_exp", "horovod", "pytorch", "pytorch2", "pytorch_elastic"]


def submitted(done: Done) -> str:
    """The name of the job that `mls job submit` has made."""
    assert done.code == 0, done
    assert done.json.keys() == {"job_name", "status", "created_at"}, done.out
    assert NAME.fullmatch(done.json["job_name"])
    return str(done.json["job_name"])


@pytest.fixture(scope="module")
def finished(mls: Site) -> str:
    """A job of two ranks that has completed."""
    name = mls.created(processes_per_worker=2, flags={"epochs": 1}, job_desc="#done")
    mls.until(name, "completed")
    return name


# --- submit


def test_the_version_is_the_one_of_the_lock(mls: Site) -> None:
    done = mls("--version")
    assert (done.code, VERSIONS[mls.version] in done.out) == (0, True)


@pytest.mark.parametrize(
    "mls", [pytest.param("1.3", marks=pytest.mark.smoke), "0.10"], indirect=True
)
def test_submit_by_options(mls: Site) -> None:
    """`-a` and `-A` changed their meaning between the versions: here both stand
    for what they mean in each.
    """
    allocation, internet = ("-A", "-a") if mls.version == "0.10" else ("-a", "-A")
    done = mls(
        *(
            "job",
            "submit",
            "-s",
            str(mls.script),
            "-I",
            IMAGE,
            "-i",
            "cpu.1C.1G",
            "-t",
            "pytorch2",
            "-w",
            "1",
            "-p",
            "2",
        ),
        *(
            "-f",
            "epochs=10,lr=0.1",
            "-v",
            "A=1,B=два",
            "-d",
            "desc x",
            "--use_env",
            "-r",
            "3",
            "-q",
            "team",
        ),
        *("--priority_class", "high", "-k", str(mls.home / "checkpoints"), "--period", "20"),
        *("--internal_action", "delete", allocation, "big", internet, "true"),
    )
    name = submitted(done)
    assert done.json["status"] == "Pending"
    mls.until(name, "completed")
    params = mls.user("GET", f"{JOBS}/{name}/params").json()
    assert {key: value for key, value in params.items() if value not in (None, [], {})} == {
        "script": str(mls.script),
        "base_image": IMAGE,
        "instance_type": "cpu.1C.1G",
        "type": "pytorch2",
        "n_workers": 1,
        "processes_per_worker": 2,
        "region": "SR006",
        "job_desc": "desc x",
        "internet": True,
        "flags": {"epochs": "10", "lr": "0.1"},
        "env_variables": {"A": "1", "B": "два"},
        "pytorch_use_env": True,
        "preflight_check": False,
        "max_retry": 3,
        "max_infrastructure_retry": 3,
        "priority_class": "high",
        "queue_name": "team",
        "allocation_name": "big",
        "checkpoint_dir": str(mls.home / "checkpoints"),
        "health_params": {"log_period": 20, "action": "delete", "sub_actions": ["notify"]},
    }
    assert "привет 0 1 ['--epochs=10', '--lr=0.1']" in mls("job", "logs", name).out


def test_submit_of_a_command(mls: Site) -> None:
    script = "bash -c 'echo $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE'"
    name = submitted(
        mls(
            "job", "submit", "-s", script, "-I", IMAGE, "-i", "cpu.1C.1G", "-t", "binary", "-p", "1"
        )
    )
    mls.until(name, "completed")
    assert "[1,0]<stdout>:0 of 1" in mls("job", "logs", name).out


@pytest.mark.parametrize("kind", [*TYPES, "torchrun"])
def test_submit_by_the_yaml_that_mls_itself_writes(kind: str, mls: Site) -> None:
    """The template of `mls job yaml`, in which only paths are this machine's."""
    if mls.version == "0.10" and kind == "torchrun":
        assert "torchrun" not in mls("job", "types").out.split()  # newer than this version
        return
    template = mls("job", "yaml", kind)
    assert template.code == 0
    (mls.home / "Mls.yaml").write_text(_for_this_machine(template.out, kind, mls.script, mls.home))
    # ./Mls.yaml is its default
    done = mls("job", "submit", *([] if kind == "binary" else ["-c", "Mls.yaml"]))
    if kind == "horovod":
        assert done.code == 0
        assert done.json.keys() == {"error_code", "error_message"}
        assert "'horovod'" in done.json["error_message"]
        return
    name = submitted(done)
    assert mls.until(name, "completed", "failed")["status"] == "completed", mls(
        "job", "logs", name
    ).out
    out = mls("job", "logs", name).out
    command = kind.startswith("binary")
    local_rank = "'--local_rank=0', " if kind == "pytorch" else ""
    assert (
        "here" if command else f"привет 0 None [{local_rank}'--flag1=True', '--flag2=True']"
    ) in out, out
    assert ("[1,0]<stdout>:" in out) == (kind != "pytorch_elastic")


def _for_this_machine(template: str, kind: str, script: Path, home: Path) -> str:
    ours = "python3 -c \"print('here')\"" if kind.startswith("binary") else str(script)
    text = re.sub(r"script: .*", lambda _: f"script: {ours}", template)
    # two GPUs are not everywhere; a machine without one runs the others on its CPU
    if kind == "pytorch_elastic":
        text = text.replace("a100.1gpu", "cpu.1C.1G").replace("workers: 3", "workers: 2")
    return text.replace("/home/jovyan", str(home))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"-s": "/nowhere/train.py"}, "can't be read"),
        ({"-i": "no-such-type"}, "no-such-type"),
        ({"-t": "horovod"}, "pytorch2"),
        ({"-e": "no-such-env"}, "no-such-env"),
    ],
)
def test_what_is_refused_is_told_in_json_with_exit_code_0(
    wrong: dict[str, str], says: str, mls: Site
) -> None:
    options = {
        "-s": str(mls.script),
        "-I": IMAGE,
        "-i": "cpu.1C.1G",
        "-t": "pytorch2",
        "-w": "1",
    } | wrong
    done = mls("job", "submit", *(word for option in options.items() for word in option))
    assert (done.code, done.json["error_code"]) == (0, 1), done
    assert says in done.json["error_message"]


def test_wrong_credentials_are_exit_code_1(mls: Site) -> None:
    file = mls.home / ".mls" / "credentials"
    right = file.read_text()
    try:
        file.write_text(re.sub("key_secret = .*", "key_secret = wrong", right))
        done = mls("job", "list")
    finally:
        file.write_text(right)
    assert done.code == 1, done


# --- read


def test_list(mls: Site, finished: str) -> None:
    since = ["-b", "2026-03-31"] if mls.version == "1.3" else []  # newer than the older version
    done = mls("job", "list", "-s", "Completed", "-s", "Failed", "-l", "1000", "-o", "0", *since)
    assert done.code == 0
    page = done.json
    assert (page["status"], page["error_code"], page["count"]) == ("ok", 0, len(page["jobs"]))
    assert finished in [job["job_name"] for job in page["jobs"]]
    assert {job["status"] for job in page["jobs"]} <= {"Completed", "Failed"}
    assert mls("job", "list", "-l", "1").json["count"] == mls.user.listed()["count"]
    assert mls("job", "list", "-R", "SR003").json["jobs"] == []


def test_table(mls: Site, finished: str) -> None:
    done = mls("job", "table", "--asc_sort", "job_desc", "-d", "#done")
    assert done.code == 0
    (row,) = [line for line in done.out.splitlines() if finished in line]
    assert [cell.strip() for cell in row.split("|")[2:7]] == [
        "Completed",
        "SR006",
        "cpu.1C.1G",
        "#done",
        "0",
    ]


def test_pods(mls: Site) -> None:
    name = mls.created(n_workers=2)
    mls.until(name, "completed")
    done = mls("job", "pods", name)
    assert done.code == 0
    found = [(pod["job_version"], pod["status"]) for pod in done.json["pods"]]
    assert found == [("mpimaster-0", "Completed"), ("mpiworker-0", "Completed")]


# --- change


def test_restart_is_a_new_job(mls: Site, finished: str) -> None:
    again = submitted(mls("job", "restart", finished))
    assert again != finished
    mls.until(again, "completed")
    assert mls("job", "logs", again).out.count("привет") == 2


def test_kill(mls: Site) -> None:
    name = mls.created(script="sleep 1000", type="binary")
    mls.until(name, "running")
    done = mls("job", "kill", name)
    assert (done.code, done.json["job_name"], done.json["status"]) == (0, name, "deleted")
    mls.until(name, "deleted")
    assert mls("job", "status", name).json["status"] == "deleted"
    assert name in [job["job_name"] for job in mls("job", "list", "-s", "Deleted").json["jobs"]]


# --- logs


def lines(out: str) -> list[str]:
    """The printed text; `mls` puts blank lines in between, and breaks a line behind 256 bytes."""
    return [line for line in out.splitlines() if line]


def test_logs_of_a_finished_job(mls: Site, finished: str) -> None:
    done = mls("job", "logs", finished)
    assert done.code == 0
    expected = [f"[1,{rank}]<stdout>:привет {rank} None ['--epochs=1']" for rank in (0, 1)]
    assert sorted(lines(done.out)) == expected
    tail = lines(mls("job", "logs", finished, "-t", "1").out)
    assert len(tail) == 1
    assert tail[0] in expected


def test_verbose_logs_have_times(mls: Site, finished: str) -> None:
    done = mls("job", "logs", finished, "-v")
    said = [line for line in lines(done.out) if "<stdout>" in line]
    assert (done.code, len(said)) == (0, 2)
    assert all(
        re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z \[1,[01]\]<stdout>:привет", line)
        for line in said
    )


def test_logs_of_a_failed_job_say_why(mls: Site) -> None:
    name = mls.created(script="bash -c 'echo last words; exit 3'", type="binary")
    mls.until(name, "failed")
    out = lines(mls("job", "logs", name).out)
    assert out[0] == "[1,0]<stdout>:last words"
    assert out[-1].startswith(f"Job {name} Failed: ")
    assert "3" in out[-1].removeprefix(f"Job {name}")


def followed(mls: Site, seconds: int, per_second: int) -> None:
    name = mls.created(env_variables={"LINES": seconds * per_second, "PAUSE": 1 / per_second})
    mls.until(name, "running")
    done = mls("job", "logs", name, "-w")
    assert done.code == 0
    said = lines(done.out)
    whole = [line for line in said if "line " in line]
    numbers = [int(found) for found in re.findall(r"<stdout>:line (\d+)", done.out)]
    assert numbers == list(range(seconds * per_second)), said
    assert all(line.startswith("[1,0]<stdout>:line ") for line in whole)
    assert done.out.count("x") == 300 * sum(number % 3 == 2 for number in numbers)
    assert mls.log_requests(name) < 10
    assert mls.user.status(name)["status"] == "completed"


def test_a_running_job_is_followed_to_its_end_each_line_once(mls: Site) -> None:
    followed(mls, seconds=4, per_second=5)


@pytest.mark.long
def test_a_job_of_half_a_minute_is_followed_to_its_end_each_line_once(mls: Site) -> None:
    followed(mls, seconds=30, per_second=5)


def test_a_pending_job_is_waited_for_and_then_followed(mls: Site) -> None:
    blockers = [mls.created(script="sleep 1000", type="binary") for _ in range(2)]
    for blocker in blockers:
        mls.until(blocker, "running")
    name = mls.created(env_variables={"LINES": 10, "PAUSE": 0.1})
    waits = mls("job", "logs", name)
    assert (waits.code, waits.out.strip()) == (0, f'"Job {name} in queue. Try later"')
    follower = mls.start("job", "logs", name, "-w")
    # it has seen that it is pending
    until(lambda: mls.server.output.count(f'"path": "/public/v2/jobs/{name}"') >= 3)
    for blocker in blockers:
        mls.user("DELETE", f"{JOBS}/{blocker}?region=SR006")
    out, _ = follower.communicate(timeout=60)
    assert follower.returncode == 0
    assert re.findall(r"<stdout>:line (\d+)", out) == [str(number) for number in range(10)]
    assert mls.log_requests(name) < 10


# --- the package's Python API

CALLS = """
import inspect, json, sys, time
from mls_core import TrainingJobApi
url, user, token, script, image = sys.argv[1:]
new = "start_date" in inspect.signature(TrainingJobApi.get_list_jobs).parameters
dates = dict(start_date=None, end_date=None) if new else {}
api = TrainingJobApi(url, user, token, "00000000-0000-4000-8000-000000000000", "any")
said = {}
payload = dict(script=script, base_image=image, instance_type="cpu.1C.1G", region="SR006")
payload.update(type="pytorch2", n_workers=1, processes_per_worker="default")
payload.update(flags={"a": 1, "b": True}, env_variables={"A": 7})
said["run"] = api.run_job(payload)
name = said["run"]["job_name"]
while api.get_job_status(name)["status"] in ("pending", "running"):
    time.sleep(0.1)
said["status"] = api.get_job_status(name)
said["logs"] = "".join(api.get_job_logs(name, "SR006", 0, False))
said["stream"] = "".join(api.stream_logs(name, "SR006", 0, True))
wanted = dict(region="SR006", queue=None, allocation_name=None)
wanted.update(status=["Completed"], limit=10, offset=0)
said["list"] = api.get_list_jobs(**wanted, **dates)
said["pods"] = api.get_pods(name)
said["restart"] = api.restart_job(name)
said["delete"] = api.delete_job(said["restart"]["job_name"], "SR006")
print(json.dumps(said))
"""


def test_the_training_job_api(mls: Site) -> None:
    user = mls.server.get("/api/v1/info").json()["user"]
    token = (mls.server.state_dir / "token").read_text().strip()
    said: dict[str, Any] = mls.python(
        CALLS, f"{mls.server.facts()['url']}/public/v2", user, token, str(mls.script), IMAGE
    )
    said = {name: json_of(value) for name, value in said.items()}
    name = said["run"]["job_name"]
    assert said["status"]["status"] == "completed"
    assert "[1,0]<stdout>:привет 0 7 ['--a=1', '--b=True']" in said["logs"]
    assert said["stream"].count("привет") == 1
    assert name in [job["job_name"] for job in said["list"]["jobs"]]
    assert said["pods"]["pods"][0]["job_version"] == "mpimaster-0"
    assert said["restart"]["job_name"] != name
    assert said["delete"]["status"] == "deleted"


def json_of(value: Any) -> Any:
    """Some of its calls give the text of an answer, some what it holds."""
    import json

    try:
        return json.loads(value)
    except (TypeError, ValueError):
        return value


# --- mls-config


def test_the_profile_that_client_lib_writes_is_one_that_mls_reads(
    mls: Site, tmp_path: Path
) -> None:
    url = mls.server.facts()["url"]
    token = (mls.server.state_dir / "token").read_text().strip()
    ours = {"HOME": str(tmp_path), "CLIENT_LIB_ENDPOINT": url, "CLIENT_LIB_TOKEN": token}
    line = [sys.executable, "-m", "client_lib", "mls-config", "--mls-profile", "ours"]
    subprocess.run(line, env=os.environ | ours, check=True, capture_output=True)
    theirs = [str(mls.venv / "bin" / "mls"), "job", "list", "--profile", "ours"]
    done = subprocess.run(
        theirs, env=mls.variables | {"HOME": str(tmp_path)}, capture_output=True, text=True
    )
    assert (done.returncode, '"status": "ok"' in done.stdout) == (0, True), done
