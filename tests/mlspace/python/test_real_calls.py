"""Calls that public code of the platform's users makes, each on the local
runtime with a real script.
"""

import shlex
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import client_lib
from client_lib import Client, InvalidRequest, Job, State, get_job
from tests.kit.waiting import until
from tests.mlspace.python import scripts

IMAGE = "cr.msk.sbercloud.ru/aicloud-base-images/cuda12.2-torch2-py310:0.0.37"
A100PLUS = "a100plus.1gpu.80vG.12C.96G"
REGION: dict[str, Any] = {
    "region": "SR005",
    "base_image": IMAGE,
    "instance_type": A100PLUS,
    "n_workers": 1,
    "type": "pytorch2",
}


class Call(NamedTuple):
    """Arguments of a Job (`script` is taken as a file of the folder where it is a name of
    `scripts`) and its lines.
    """

    script: str
    arguments: dict[str, Any]
    lines: list[str]


def elastic(**more: Any) -> dict[str, Any]:
    bounds = {"n_workers": 3, "elastic_min_workers": 1, "elastic_max_workers": 3}
    return REGION | {"type": "pytorch_elastic", "flags": {"epochs": 10}} | bounds | more


def lines(pattern: str, count: int) -> list[str]:
    return [pattern.format(rank, count) for rank in range(count)]


CALLS = {
    "pytorch2 in a region": Call(
        "TRAIN", REGION | {"pytorch_use_env": True}, ["trained 0 of 1 local 0"]
    ),
    "a short instance type": Call(
        "RANKS",
        REGION | {"instance_type": f"a100.{1}gpu.40", "pytorch_use_env": True},
        ["ranks 0 1 0 -"],
    ),
    "several workers of one process on CPUs": Call(
        "RANKS",
        REGION
        | {
            "region": "SR003",
            "instance_type": "cpu.8C.32G",
            "n_workers": 2,
            "processes_per_worker": 1,
        }
        | {"job_desc": "exp 1 | lr 0.1 #tag"},
        lines("ranks {} {} 0 -", 2),
    ),
    "elastic with use_env and a checkpoint": Call(
        "ELASTIC",
        elastic(checkpoint_dir="checkpoints", pytorch_use_env=True),
        lines("resumed {} of {} at 5 --epochs=10", 3),
    ),
    "pytorch with two workers": Call(
        "ARGUMENT",
        {"base_image": IMAGE, "n_workers": 2, "instance_type": A100PLUS, "type": "pytorch"},
        ["local 0 sum 3.0"] * 2,
    ),
    "a binary that imports": Call(
        f"{shlex.quote(sys.executable)} -c 'from json import dumps; print(dumps(1))'",
        {"base_image": IMAGE, "type": "binary", "n_workers": 1, "instance_type": A100PLUS},
        ["1"],
    ),
    "a relative script in a conda environment": Call(
        "relative MPI",
        {
            "base_image": IMAGE,
            "n_workers": 3,
            "n_gpus": 12,
            "processes_per_worker": 14,
            "type": "binary",
        },
        [f"mpi {n} 42 {n % 14} {('master-0', 'worker-0', 'worker-1')[n // 14]}" for n in range(42)],
    ),
    "flags and variables": Call(
        "RANKS",
        REGION
        | {
            "processes_per_worker": 1,
            "flags": {"foo": "a b", "bar": "$HOME"},
            "env_variables": {"FOO": "x;y"},
            "job_desc": "#tag",
            "pytorch_use_env": True,
            "in_communal_cluster": True,
        },
        ["ranks 0 1 0 x;y --foo=a b --bar=$HOME"],
    ),
}


@pytest.fixture
def write(folder: Path, client: Client) -> Callable[[str], str]:
    """The script of a call as it is given to Job; the configured server is the real local one."""

    def made(name: str) -> str:
        bare = name.removeprefix("relative ")
        if not hasattr(scripts, bare):
            return name
        (folder / f"{bare.lower()}.py").write_text(getattr(scripts, bare))
        return f"{bare.lower()}.py" if bare != name else str(folder / f"{bare.lower()}.py")

    return made


@pytest.fixture
def conda(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An environment as conda lays it out: a folder with bin/python."""
    python = folder / "conda" / "envs" / "rapids" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    monkeypatch.setenv("CONDA_EXE", str(folder / "conda" / "bin" / "conda"))
    return "rapids"


def printed(job: Job) -> list[str]:
    return sorted(job.log_lines(stream="stdout"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "call",
    [
        pytest.param(call, id=name, marks=pytest.mark.process if name.startswith("elastic") else [])
        for name, call in CALLS.items()
    ],
)
def test_a_call_runs(
    call: Call, write: Callable[[str], str], conda: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = call.arguments | (
        {"conda_env": conda} if call.script.startswith("relative") else {}
    )
    job = Job(script=write(call.script), **arguments)
    assert job.submit() == f'Job "{job.job_name}" created.'
    assert job.status().rsplit("=", 1)[-1] in ("Pending", "Running", "Completed")
    assert job.logs() is None
    shown = capsys.readouterr().out
    assert job.wait(60).state is State.SUCCEEDED
    assert printed(job) == sorted(call.lines)
    assert all(line in shown for line in call.lines)
    assert job.kill() == f'Job "{job.job_name}" deleted'
    assert job.status() == "Job status=Completed"


@pytest.mark.parametrize("kind", ["horovod", "spark", "cce"])
def test_a_type_without_a_launcher_is_refused_by_name(kind: str) -> None:
    with pytest.raises(InvalidRequest, match=f"type='{kind}': does not run here"):
        Job(script="/home/jovyan/train.py", **(REGION | {"type": kind}))


def test_a_sleeping_binary_is_found_by_region_and_killed_by_name(
    write: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    job = Job(
        script="sleep infinity",
        **(REGION | {"type": "binary", "processes_per_worker": 1, "job_desc": "sleeps"}),
    )
    assert "created." in job.submit()
    assert str(job.job_name).startswith("lm-mpi-job-")
    until(lambda: job.state is State.RUNNING)
    client_lib.jobs(region=f"SR00{5}")
    names = [line.split(" : ")[1] for line in capsys.readouterr().out.splitlines()]
    assert job.job_name in names
    assert client_lib.kill(job.job_name or "") == f'Job "{job.job_name}" deleted'
    until(lambda: job.state is State.CANCELLED)
    assert client_lib.get_job_status(job.job_name or "") == "Job status=Deleted"


def test_detached_false_shows_the_log_before_submit_returns(
    write: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.warns(DeprecationWarning, match="deprecated") as caught:
        job = Job(
            base_image=IMAGE,
            script=write("RANKS"),
            n_workers=2,
            n_gpus=4,
            warm_cache=False,
            detached=False,
        )
    assert len(caught) == 3
    assert job.submit() == f'Job "{job.job_name}" created.'
    assert "ranks 1 2 0 -" in capsys.readouterr().out
    name = job.job_name or ""
    client_lib.jobs()
    assert f" : {name} : Completed\n" in capsys.readouterr().out
    client_lib.logs(name)
    assert "ranks 0 2 0 -" in capsys.readouterr().out
    assert client_lib.kill(name) == f'Job "{name}" deleted'


def test_a_job_that_is_never_bound_to_a_name(
    write: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    from client_lib import Job as Imported, logs

    sentence = Imported(
        script=write("RANKS"),
        base_image=IMAGE,
        instance_type="cpu.2C.8G",
        n_workers=1,
        type="pytorch2",
    ).submit()
    name = sentence.split('"')[1]
    print(logs(name))
    assert "ranks 0 1 0 -" in capsys.readouterr().out.splitlines()
    assert capsys.readouterr().out == ""


@pytest.fixture
def forms(folder: Path, write: Callable[[str], str]) -> dict[str, tuple[str, str]]:
    """Values of `script` for type pytorch2, and the line that each prints."""
    absolute = write("RANKS")
    (folder / "job.sh").write_text("echo from sh $RANK $1\n")
    python = shlex.quote(sys.executable)
    return {
        "absolute": (absolute, "ranks 0 1 0 -"),
        "relative": ("ranks.py", "ranks 0 1 0 -"),
        "with arguments": (
            f"{absolute} key=value +trainer.lr=0.1",
            "ranks 0 1 0 - key=value +trainer.lr=0.1",
        ),
        "sh": (f"{folder}/job.sh", "from sh 0"),
        "bash X": (f"bash {folder}/job.sh one", "from sh 0 one"),
        "bash -c": (f"bash -c 'cd {folder} && ls *.sh | cat'", "job.sh"),
        "python -c": (f"{python} -c \"import os; print(os.environ['RANK'])\"", "0"),
    }


@pytest.mark.parametrize(
    "form", ["absolute", "relative", "with arguments", "sh", "bash X", "bash -c", "python -c"]
)
def test_a_form_of_script_runs(form: str, forms: dict[str, tuple[str, str]]) -> None:
    script, line = forms[form]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        job = Job(script=script, **REGION)
        job.submit()
    job.wait(30)
    assert printed(get_job(job.job_name or "")) == [line]
