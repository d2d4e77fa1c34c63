"""torchrun's line as fields of a job, against torch's own parser."""

import shlex
from typing import Any

import pytest

from client_lib.errors import ClientLibError, InvalidRequest, NotSupported
from client_lib.launch_lines import LaunchLine, Machine, read
from client_lib.launch_lines.torchrun import DROPPED, READ, REFUSED, TABLE


def line(text: str, machine: Machine = Machine()) -> LaunchLine:  # noqa: B008  frozen
    found = read(shlex.split(text), machine)
    assert found is not None
    return found


def fields(text: str, cores: int | None = None) -> dict[str, Any]:
    """Without the script, unless it is the wrong one."""
    found = dict(line(text, Machine(cores)).fields)
    assert (found.pop("script"), found.pop("args")) == ("train.py", ["--lr", "0.1"])
    return found


def test_every_option_of_torchrun_has_a_meaning() -> None:
    run = pytest.importorskip("torch.distributed.run")
    assert len(READ | DROPPED.keys() | REFUSED.keys()) == len(READ) + len(DROPPED) + len(REFUSED)
    for action in run.get_args_parser()._actions:
        for option in action.option_strings:
            name = option.lstrip("-").replace("_", "-")
            if len(name) == 1:
                assert TABLE.short[name] == action.dest.replace("_", "-")
            else:
                assert name in (TABLE.flags if action.nargs == 0 else TABLE.valued), option


@pytest.mark.parametrize(
    ("options", "meant"),
    [
        ("", {}),
        ("--nnodes 2 --nproc-per-node 2", {"n_workers": 2, "processes_per_worker": 2}),
        ("--nnodes=2 --nproc_per_node=8", {"n_workers": 2, "processes_per_worker": 8}),
        ("--nnode 2 --nproc 8", {"n_workers": 2, "processes_per_worker": 8}),  # abbreviated
        ("--nproc_per_node=gpu", {"processes_per_worker": "default"}),
        ("--nproc_per_node=auto", {"processes_per_worker": "default"}),
        ("--nproc_per_node=cpu", {"processes_per_worker": 6}),
        ("--standalone --nproc-per-node 4", {"processes_per_worker": 4}),
        ("--standalone --nnodes=1 --nproc-per-node 4", {"n_workers": 1, "processes_per_worker": 4}),
        ("--nproc_per_nodes 4", {"processes_per_worker": 4}),
        ("--max-restarts 3", {"max_retry": 3}),
        ("--shutdown-timeout 5", {"grace_s": 5.0}),
        ("--nnodes 2:2", {"n_workers": 2}),
        ("--run-path", {}),
        (
            "--nnodes 1:4 --max-restarts=3 --rdzv_backend=c10d",
            {
                "type": "pytorch_elastic",
                "n_workers": 4,
                "elastic_min_workers": 1,
                "elastic_max_workers": 4,
                "elastic_max_restarts": 3,
            },
        ),
    ],
)
@pytest.mark.parametrize(
    "launcher", ["torchrun", "python -m torch.distributed.run", "/usr/bin/torchrun"]
)
def test_options_become_fields(launcher: str, options: str, meant: dict[str, Any]) -> None:
    assert fields(f"{launcher} {options} train.py --lr 0.1", cores=6) == meant


def test_torchrun_starts_one_process_unless_it_is_told() -> None:
    assert line("torchrun --nnodes 2 train.py").defaults == {"processes_per_worker": 1}


def test_the_same_options_are_read_by_torch_itself() -> None:
    """What torch's own parser makes of the same words, abbreviations as
    far as this Python has them.
    """
    run = pytest.importorskip("torch.distributed.run")
    words = (
        "--nnodes=2 --nproc_per_node 8 --max-restarts 3 --rdzv_id 7 -r 3 -t3 train.py --nnodes 5 "
        "-m x"
    )
    theirs, ours = run.parse_args(words.split()), line(f"torchrun {words}")
    assert (theirs.training_script, theirs.training_script_args) == (
        ours.fields["script"],
        ours.fields["args"],
    )
    assert (int(theirs.nnodes), int(theirs.nproc_per_node)) == (
        ours.fields["n_workers"],
        ours.fields["processes_per_worker"],
    )


def test_options_of_the_environment_are_read_as_torch_reads_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = pytest.importorskip("torch.distributed.run")
    variables = {
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "4",
        "PET_MAX_RESTARTS": "3",
        "PET_MODULE": "1",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    theirs = run.parse_args(["--nproc-per-node", "8", "package.train"])
    ours = line("torchrun --nproc-per-node 8 package.train", Machine(environment=variables))
    assert (int(theirs.nnodes), int(theirs.nproc_per_node)) == (2, 8)
    assert (ours.fields["n_workers"], ours.fields["processes_per_worker"]) == (2, 8)
    assert theirs.max_restarts == ours.fields["max_retry"] == 3
    assert (theirs.module, ours.fields["script"]) == (True, "python -m package.train")
    assert "PET_NNODES of the environment is read as --nnodes 2" in ours.notices
    assert line("torchrun train.py", Machine(environment={"PET_STANDALONE": "0"})).notices == []


def test_what_has_no_effect_is_named_with_its_reason() -> None:
    notices = line(
        "torchrun --node_rank 1 --rdzv-id=7 --rdzv_endpoint h:1 -t 3 --nproc_per_nodes 2 train.py"
    ).notices
    assert notices == [
        "--nproc_per_nodes is read as --nproc-per-node",
        "--node-rank has no effect here: one submit starts all workers",
        (
            "--rdzv-id, --rdzv-endpoint have no effect here: the workers of a job find each other "
            "by themselves"
        ),
        (
            "--tee has no effect here: the output of every rank is kept with the job (`client-lib "
            "logs`)"
        ),
    ]


def test_a_module_and_a_program_are_commands() -> None:
    module = line("torchrun --nproc-per-node 2 -m package.train --lr 0.1").fields
    assert (module["script"], module["args"]) == ("python -m package.train", ["--lr", "0.1"])
    assert line("torchrun --no-python './my tool' -v").fields["script"] == "'./my tool'"
    assert line("torchrun tool -v").fields["script"] == "python tool"


def test_the_interpreter_beside_a_named_torchrun_runs_the_script() -> None:
    here = Machine(is_file=lambda path: path == "env/bin/python")
    assert line("env/bin/torchrun train.py", here).python == "env/bin/python"
    assert line("other/bin/torchrun train.py", here).python is None
    assert line("env/bin/python -m torch.distributed.run train.py").python == "env/bin/python"
    assert line("env/bin/torchrun -m train", here).fields["script"] == "env/bin/python -m train"


def test_the_older_launcher_knows_use_env() -> None:
    launch = pytest.importorskip("torch.distributed.launch")
    assert launch.parse_args(["--use_env", "--nproc_per_node=2", "train.py"]).use_env
    old = line("python -m torch.distributed.launch --nproc_per_node=2 --use_env train.py")
    assert (old.launcher, old.fields["processes_per_worker"]) == ("torch.distributed.launch", 2)


@pytest.mark.parametrize(
    ("text", "error", "about"),
    [
        ("torchrun --nnodes 2", InvalidRequest, "names no script"),
        ("torchrun -m", InvalidRequest, "names no module"),
        ("torchrun --nnodes two train.py", InvalidRequest, "--nnodes 'two'"),
        (
            "torchrun --nnodes 4:2 train.py",
            InvalidRequest,
            "'2' is not a whole number of at least 4",
        ),
        ("torchrun --nproc-per-node 0 train.py", InvalidRequest, "at least 1"),
        ("torchrun --nproc-per-node xpu train.py", InvalidRequest, "xpu"),
        ("torchrun --nproc-per-node cpu train.py", InvalidRequest, "give the number"),
        ("torchrun --nnodes 2 --standalone train.py", InvalidRequest, "--standalone is one node"),
        ("torchrun --standalone=1 train.py", InvalidRequest, "takes no value"),
        (
            "torchrun --nproc-per-node --standalone train.py",
            InvalidRequest,
            "--nproc-per-node needs a value",
        ),
        ("torchrun --n 2 train.py", InvalidRequest, "--nnodes or --no-python"),
        ("torchrun --nproc-per-gpu 2 train.py", InvalidRequest, "did you mean --nproc-per-node?"),
        ("torchrun -x train.py", InvalidRequest, "no option -x"),
        ("torchrun --use-env train.py", InvalidRequest, "no option --use-env"),
        ("torchrun -m --no-python train", InvalidRequest, "exclude each other"),
        ("torchrun --virtual-local-rank train.py", NotSupported, "--virtual-local-rank"),
        ("torchrun --help", NotSupported, "client-lib submit --help"),
        (
            "srun -N2 --ntasks-per-node 8 python train.py --lr 1",
            NotSupported,
            "`client-lib submit -N 2 --processes-per-worker 8 train.py --lr 1`",
        ),
        (
            "srun train.py -N 2",
            NotSupported,
            "`client-lib submit -N MACHINES --processes-per-worker PROCESSES train.py -N 2`",
        ),
        ("srun python -m train -N 2", NotSupported, "`client-lib submit -N MACHINES "),
        (
            "srun --nodes 3 ./run.sh --ntasks-per-node 2",
            NotSupported,
            "-N 3 --processes-per-worker PROCESSES",
        ),
        (
            "/opt/slurm/bin/srun python -m package.train -x",
            NotSupported,
            "PROCESSES python -m package.train -x`",
        ),
        (
            "sbatch --nodes=4 job.sbatch",
            NotSupported,
            "`client-lib submit -N 4 --processes-per-worker PROCESSES train.py`",
        ),
        ("mpirun -np 4 python train.py", NotSupported, "--processes-per-worker 4 train.py`"),
        ("ray job submit -- python train.py", NotSupported, "PROCESSES train.py`"),
    ],
)
def test_what_torchrun_would_not_run_is_refused_in_words(
    text: str, error: type[ClientLibError], about: str
) -> None:
    with pytest.raises(error) as refused:
        line(text)
    assert about in str(refused.value)


@pytest.mark.parametrize(
    "text", ["train.py --lr 1", "./measure.sh", "python", "python3 -u", "uv pip list", ""]
)
def test_other_lines_are_left_alone(text: str) -> None:
    assert read(text.split(), Machine()) is None


SHELL = {"env_variables": {"CLIENT_LIB_RANK_VARIABLES": "0"}}
"""One process of it finds no variables of ranks, as in a shell."""


@pytest.mark.parametrize(
    ("text", "script", "args"),
    [
        ("python -u train.py --lr 1", "train.py", ["--lr", "1"]),
        ("python3 -m package.train -x", "python -m package.train", ["-x"]),
        ("python -X dev a.py", "python", ["-X", "dev", "a.py"]),
        ("python -c pass", "python", ["-c", "pass"]),
    ],
)
def test_python_lines(text: str, script: str, args: list[str]) -> None:
    assert line(text).fields == {"script": script, "args": args}
    assert line(text).defaults == SHELL


def test_a_python_line_may_name_its_interpreter() -> None:
    assert line("python3.11 train.py").python == "python3.11"
    assert line("env/bin/python -c pass").fields["script"] == "env/bin/python"
