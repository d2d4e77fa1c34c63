"""deepspeed's line as fields of a job."""

import shlex
from typing import Any

import pytest

from client_lib.errors import ClientLibError, InvalidRequest, NotSupported
from client_lib.launch_lines import LaunchLine, Machine, read
from client_lib.launch_lines.deepspeed import DROPPED, REFUSED

FILES = {
    "hosts": "# ours\n\nworker-1 slots=4\nworker-2 slots=4  # new\n",
    "odd": "worker-1 slots=4\nworker-2 slots=2\n",
    "broken": "worker-1\n",
}


def line(text: str) -> LaunchLine:
    found = read(shlex.split(text), Machine(text=FILES.get))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("options", "meant"),
    [
        ("", {}),
        ("--num_gpus=8", {"processes_per_worker": 8}),
        ("--num_gpus -1 --num_nodes -1", {}),
        ("--num_nodes 2 --num_gpus 4", {"n_workers": 2, "processes_per_worker": 4}),
        ("--hostfile hosts", {"n_workers": 2, "processes_per_worker": 4}),
        ("-H hosts --num_nodes 1", {"n_workers": 1, "processes_per_worker": 4}),
        ("--hostfile odd --num_gpus 2", {"n_workers": 2, "processes_per_worker": 2}),
        ("--hostfile none --num_gpus 2", {"processes_per_worker": 2}),
        (
            "--include localhost:0,3",
            {"n_workers": 1, "processes_per_worker": 2, "gpus": [0, 3]},
        ),
        (
            "--include localhost:3,0,3",
            {"n_workers": 1, "processes_per_worker": 2, "gpus": [0, 3]},
        ),
        ("-H hosts --include worker-2", {"n_workers": 1, "processes_per_worker": 4}),
        (
            "--include=worker-1:0,1@worker-2:2,3",
            {"n_workers": 2, "processes_per_worker": 2},
        ),
    ],
)
@pytest.mark.parametrize("launcher", ["deepspeed", "ds", "python -m deepspeed.launcher.runner"])
def test_options_become_fields(launcher: str, options: str, meant: dict[str, Any]) -> None:
    found = line(f"{launcher} {options} train.py --deepspeed zero.json")
    runs = {"script": "train.py", "args": ["--deepspeed", "zero.json"]}
    assert found.fields == {**runs, **meant}
    assert found.defaults == {"pytorch_use_env": False}


def test_a_module_and_a_script_without_local_rank() -> None:
    module = line("deepspeed --num_gpus=2 --module pkg.mod --model x").fields
    assert (module["script"], module["args"]) == ("python -m pkg.mod", ["--model", "x"])
    assert module["env_variables"] == {"CLIENT_LIB_RANK_VARIABLES": "1"}
    assert line("deepspeed --no_local_rank train.py").defaults == {}


def test_what_has_no_effect_is_named() -> None:
    notices = line("deepspeed --hostfile none --master_port 1 --save_pid train.py").notices
    assert len(notices) == 3
    assert "there is no hostfile none" in notices[2]
    assert not DROPPED.keys() & REFUSED.keys()
    several = line("deepspeed --include a:0,1@b:2,3 t.py").notices
    assert several == [
        "of --include the numbers of GPUs count: which ones a worker gets is not said"
    ]
    assert line("deepspeed --include localhost:0,1 t.py").notices == []


@pytest.mark.parametrize(
    ("text", "error", "about"),
    [
        ("--hostfile odd t.py", InvalidRequest, "give --num_gpus"),
        ("--hostfile broken t.py", InvalidRequest, "HOST slots=N"),
        ("--include localhost:a t.py", InvalidRequest, "--include"),
        ("-H hosts --include other t.py", InvalidRequest, "no host other"),
        ("-H hosts --include worker-1@other:0 t.py", InvalidRequest, "its hosts are worker-1, wor"),
        ("-H hosts --num_nodes 3 t.py", InvalidRequest, "--num_nodes 2"),
        ("-H hosts -i worker-2 --num_nodes 2 t.py", InvalidRequest, "--num_nodes 1"),
        ("--exclude worker-1:0 t.py", NotSupported, "name what is used"),
        ("--num_gpus x t.py", InvalidRequest, "--num_gpus"),
        ("--num_gpu_s 2 t.py", InvalidRequest, "did you mean --num-gpus"),
        ("--num_gpus 2", InvalidRequest, "names no script"),
    ],
)
def test_what_can_not_be_read_is_refused_in_words(
    text: str, error: type[ClientLibError], about: str
) -> None:
    with pytest.raises(error) as refused:
        line(f"deepspeed {text}")
    assert about in str(refused.value)
