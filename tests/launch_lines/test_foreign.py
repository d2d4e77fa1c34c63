"""What is proposed in place of a line or a job file of another system trains the same."""

import shlex
import time
from typing import Any

import pytest
import yaml

from client_lib.errors import NotSupported
from client_lib.launch_lines import Machine, read, refuse_file

SBATCH = """#!/bin/bash
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
export GPUS_PER_NODE=8
head=$(scontrol show hostnames | head -n 1)
# srun python old.py
srun --label torchrun \\
    --nnodes $SLURM_NNODES --nproc_per_node ${GPUS_PER_NODE} \\
    --rdzv_endpoint $head:29500 train.py --epochs 5
"""
FILES = {"job.sbatch": SBATCH, "plain.slurm": "#SBATCH -N 2\n#SBATCH -n 8\nsrun python t.py\n"}
MACHINE = Machine(text=FILES.get)


def proposed(refusal: str) -> str:
    start = "write `client-lib submit "
    assert start in refusal
    return refusal.split(start, 1)[1].split("`")[0]


def shape(options: str) -> dict[str, Any]:
    """Workers, processes, program and variables of a line of ours."""
    words = shlex.split(options)
    found: dict[str, Any] = {"-N": 1, "--processes-per-worker": "default", "-e": []}
    while words and words[0].startswith("-"):
        option = words.pop(0)
        value = words.pop(0)
        if option == "-e":
            found["-e"].append(value)
        else:
            found[option] = int(value) if value.isdigit() else value
    line = read(words, MACHINE)
    if line is None:
        return {**found, "runs": words}
    processes = found["--processes-per-worker"]
    if processes == "default":
        processes = line.defaults.get("processes_per_worker", processes)
    fields = {**line.defaults, **line.fields}
    return {
        "-N": fields.get("n_workers", found["-N"]),
        "--processes-per-worker": line.fields.get("processes_per_worker", processes),
        "-e": found["-e"],
        "runs": [*shlex.split(fields["script"]), *fields["args"]],
    }


LINES = [
    ("srun -N2 --ntasks-per-node 8 python train.py --lr 1", 2, 8, "train.py --lr 1"),
    ("srun -N 2 -n 8 train.py", 2, 4, "train.py"),
    ("srun -n 4 python -u -m pkg.mod --seeds 42,43", 1, 4, "python -m pkg.mod --seeds 42,43"),
    (
        "srun torchrun --nnodes 2 --nproc_per_node 4 --rdzv_backend c10d --rdzv_endpoint h:29500 "
        "train.py --epochs 5",
        2,
        4,
        "train.py --epochs 5",
    ),
    ("srun --nodes 3 torchrun --nproc_per_node 4 -m pkg.mod -x", 3, 4, "python -m pkg.mod -x"),
    ("srun -N 2 accelerate launch --num_processes 8 --num_machines 2 t.py", 2, 4, "t.py"),
    ("srun -N 2 uv run torchrun --nproc_per_node 4 t.py", 2, 4, "t.py"),
    ("mpirun -np 4 python train.py", 1, 4, "train.py"),
    ("mpiexec -n 4 -ppn 2 python train.py", 2, 2, "train.py"),
    ("horovodrun -np 8 -H a:4,b:4 python train.py -v", 1, 8, "train.py -v"),
    ("nohup srun -N2 --ntasks-per-node=1 ./run.sh -x", 2, 1, "./run.sh -x"),
    ("srun --output /logs/x.out -n 2 python t.py", 1, 2, "t.py"),
    ("srun -N2 -n 8 --chdir /work --exclusive python t.py", 2, 4, "t.py"),
    ("mpirun -np 2 --hostfile /etc/hosts -x PATH /opt/bin/python t.py", 1, 2, "t.py"),
    ("mpirun -np 2 --oversubscribe ./run -x /data", 1, 2, "./run -x /data"),
    ("srun -n 2 --mem=1G ./run -x /data", 1, 2, "./run -x /data"),
    ("srun -N 2 --ntasks-per-node=4 torchrun t.py", 2, 4, "t.py"),
    ("sbatch job.sbatch", 4, 8, "train.py --epochs 5"),
    ("sbatch --nodes=2 job.sbatch", 2, 8, "train.py --epochs 5"),
    ("sbatch plain.slurm", 2, 4, "t.py"),
]


@pytest.mark.parametrize(("line", "workers", "processes", "runs"), LINES)
def test_the_line_to_write_in_place_of_another_launchers(
    line: str, workers: int, processes: int, runs: str
) -> None:
    with pytest.raises(NotSupported) as refused:
        read(shlex.split(line), MACHINE)
    assert shape(proposed(str(refused.value))) == {
        "-N": workers,
        "--processes-per-worker": processes,
        "-e": [],
        "runs": shlex.split(runs),
    }


def test_numbers_that_are_not_known_have_placeholders() -> None:
    with pytest.raises(NotSupported, match="-N MACHINES --processes-per-worker PROCESSES python"):
        read(shlex.split("srun python -u -m pkg.mod --seeds 42,43"), MACHINE)


POD = {"containers": [{"image": "i", "command": ["torchrun", "train.py"], "args": ["--lr", "1"]}]}
SHELL_POD = {
    "containers": [
        {
            "command": ["bash", "-c", "cd /x && exec python -m pkg.train --n $N"],
            "env": [{"name": "N", "value": "3"}, {"name": "TOKEN", "valueFrom": {}}],
        }
    ]
}
YAML = [
    (
        {
            "kind": "PyTorchJob",
            "spec": {
                "nprocPerNode": "4",
                "pytorchReplicaSpecs": {
                    "Master": {"replicas": 1, "template": {"spec": POD}},
                    "Worker": {"replicas": 2, "template": {"spec": POD}},
                },
            },
        },
        "PyTorchJob of Kubeflow",
        (3, 4, [], "train.py --lr 1"),  # the operator sets PET_NPROC_PER_NODE
    ),
    (
        {
            "kind": "PyTorchJob",
            "spec": {
                "nprocPerNode": "4",
                "pytorchReplicaSpecs": {"Master": {"template": {"spec": SHELL_POD}}},
            },
        },
        "PyTorchJob of Kubeflow",
        (1, 4, ["N=3"], "python -m pkg.train --n 3"),
    ),
    (
        {
            "kind": "TrainJob",
            "spec": {
                "trainer": {"numNodes": 2, "numProcPerNode": 8, "command": ["python", "t.py"]}
            },
        },
        "TrainJob of Kubeflow",
        (2, 8, [], "t.py"),
    ),
    (
        {
            "resources": {"accelerators": "A100:8"},
            "num_nodes": 2,
            "envs": {"LR": "0.1"},
            "setup": "pip install -r requirements.txt",
            "run": "cd x\ntorchrun --nnodes=$SKYPILOT_NUM_NODES "
            "--nproc_per_node=$SKYPILOT_NUM_GPUS_PER_NODE --node_rank=${SKYPILOT_NODE_RANK} \\\n"
            "  train.py --lr $LR",
        },
        "task of SkyPilot",
        (2, 8, ["LR=0.1"], "train.py --lr 0.1"),
    ),
    (
        {
            "type": "task",
            "nodes": 2,
            "env": ["A=1", "HF_TOKEN"],
            "resources": {"gpu": "H100:4"},
            "commands": [
                "pip install .",
                "accelerate launch --num_processes $DSTACK_GPUS_NUM --num_machines "
                "$DSTACK_NODES_NUM --main_process_ip $DSTACK_MASTER_NODE_IP t.py",
            ],
        },
        "task of dstack",
        (2, 4, ["A=1"], "t.py"),
    ),
]


@pytest.mark.parametrize(("values", "kind", "meant"), YAML)
def test_the_line_to_write_in_place_of_a_job_file(
    values: dict[str, Any], kind: str, meant: tuple[int, int, list[str], str]
) -> None:
    with pytest.raises(NotSupported) as refused:
        refuse_file("job.yaml", yaml.safe_dump(values), values, MACHINE)
    assert f"job.yaml is a {kind}" in str(refused.value)
    workers, processes, variables, runs = meant
    assert shape(proposed(str(refused.value))) == {
        "-N": workers,
        "--processes-per-worker": processes,
        "-e": variables,
        "runs": shlex.split(runs),
    }


def test_a_script_for_sbatch_is_named() -> None:
    with pytest.raises(NotSupported) as refused:
        refuse_file("job.sbatch", SBATCH, None, MACHINE)
    assert "job.sbatch is a script for sbatch" in str(refused.value)
    assert shape(proposed(str(refused.value)))["-N"] == 4


@pytest.mark.parametrize(
    "values",
    [
        None,
        [],
        "text",
        {},
        {"script": "train.py", "n_workers": 2},
        {"kind": "Pod"},
        {"type": "task"},
        {"run": 3},
    ],
)
def test_other_files_are_left_alone(values: object) -> None:
    refuse_file("job.yaml", "", values, MACHINE)


@pytest.mark.parametrize(
    "values",
    [
        {"kind": "PyTorchJob"},
        {"kind": "PyTorchJob", "spec": {"pytorchReplicaSpecs": {"Worker": 3}, "nprocPerNode": []}},
        {"kind": "TrainJob", "spec": []},
        {"run": "", "resources": 3, "envs": 4},
        {"type": "task", "commands": [3, None], "env": 3, "resources": {"gpu": None}},
        {"run": "torchrun '", "num_nodes": -1},
    ],
)
def test_a_damaged_file_is_named_all_the_same(values: object) -> None:
    with pytest.raises(NotSupported, match="client-lib submit"):
        refuse_file("job.yaml", "", values, MACHINE)


HUGE = "9" * 5000
"""More digits than int() takes."""


@pytest.mark.parametrize(
    "number", [HUGE, int("f" * 5000, 16), "²", "4 ", True, [8]], ids=lambda _: ""
)
def test_a_number_that_no_cluster_has_is_none(number: Any) -> None:
    replicas = {"Worker": {"replicas": number, "template": {"spec": POD}}}
    files = [
        {"kind": "PyTorchJob", "spec": {"nprocPerNode": number, "pytorchReplicaSpecs": replicas}},
        {"kind": "TrainJob", "spec": {"trainer": {"numNodes": number, "numProcPerNode": number}}},
        {"run": "torchrun t.py", "num_nodes": number, "resources": {"accelerators": number}},
        {"type": "task", "commands": ["t.py"], "nodes": number, "resources": {"gpu": number}},
    ]
    for values in files:
        with pytest.raises(NotSupported) as refused:
            refuse_file("job.yaml", "", values, MACHINE)
        assert shape(proposed(str(refused.value)))["-N"] == 1


def test_an_option_of_such_a_number_is_passed_over() -> None:
    with pytest.raises(NotSupported, match="-N MACHINES"):
        read(["srun", "-n", HUGE, "python", "t.py"], MACHINE)


@pytest.mark.parametrize(
    "text",
    [
        "\n" * 2**20,
        "a\n" * 2**19,
        " " * 2**20,
        "export " * 2**17,
        f"A={'a' * 900}\n{'$A' * 5000}\n" * 4,
        f"A={'a' * 2**15}\n{'$A' * 2**14}",
        "'\n" * 2**19,
        "a" * 2**20,
        "; " * 2**19,
    ],
    ids=lambda text: repr(text[:8]),
)
def test_any_script_is_looked_through_in_a_moment(text: str) -> None:
    began = time.process_time()
    with pytest.raises(NotSupported, match="client-lib submit"):
        refuse_file("job.sh", f"#SBATCH -N 2\n{text}", None, MACHINE)
    assert time.process_time() - began < 5
