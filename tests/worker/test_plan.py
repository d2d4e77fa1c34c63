"""The surroundings of every process: environment, argv, working directory, sys.path."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from client_lib import launch_lines
from client_lib.launch_lines import Machine
from client_lib.launcher_protocol import control
from client_lib.launcher_protocol.directory import Directory
from client_lib.launcher_protocol.plan import WorkerPlan
from client_lib.launcher_protocol.rank_processes import of_no_rank, processes
from client_lib.worker import function_runner
from client_lib.worker.preparation import SOURCE_MAX, declared_option
from tests.kit.processes import free_port
from tests.worker.conftest import Worker

Make = Callable[..., Worker]

SHOW = (
    "import json, os, sys; print(json.dumps([dict(os.environ), sys.argv, os.getcwd(), "
    "sys.path[0], __file__]))"
)


def environment(plan: WorkerPlan, local_rank: int = 0) -> dict[str, str]:
    return processes(plan, Directory("/w"), None)[local_rank].environment


@pytest.fixture
def plan(worker: Make) -> Callable[..., WorkerPlan]:
    return lambda **fields: worker(**({"environment": {}} | fields)).plan


def test_the_variables_of_every_process(plan: Callable[..., WorkerPlan]) -> None:
    made = plan(
        worker=2,
        n_workers=3,
        processes_per_worker=4,
        attempt=2,
        checkpoint_dir="/c",
        gpus=["0", "3"],
        max_restarts=3,
    )
    assert environment(made, local_rank=1) == {
        "RANK": "9",
        "WORLD_SIZE": "12",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "4",
        "NODE_RANK": "2",
        "GROUP_RANK": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "2999",
        "PYTHONUNBUFFERED": "1",
        "CLIENT_LIB_JOB_NAME": "job-1",
        "CLIENT_LIB_ATTEMPT": "2",
        "CLIENT_LIB_CHECKPOINT_DIR": "/c",
        "CLIENT_LIB_WORKER_DIR": "/w",
        "CLIENT_LIB_METRICS": "/w/metrics",
        "TORCHELASTIC_RESTART_COUNT": "1",
        "TORCHELASTIC_MAX_RESTARTS": "3",
        "TORCHELASTIC_RUN_ID": "job-1",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "GROUP_WORLD_SIZE": "3",
        "ROLE_NAME": "default",
        "ROLE_RANK": "9",
        "ROLE_WORLD_SIZE": "12",
        "TORCHELASTIC_ERROR_FILE": "/w/errors/9.json",
        "MLSPACE_JOB_NAME": "job-1",
        "CUDA_VISIBLE_DEVICES": "0,3",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "OMP_NUM_THREADS": "1",
        "TORCH_FR_BUFFER_SIZE": "256",
    }


def test_a_worker_without_gpus_sees_none_and_tells_accelerate(
    plan: Callable[..., WorkerPlan],
) -> None:
    seen = environment(plan(gpus=[]))
    assert (seen["CUDA_VISIBLE_DEVICES"], seen["ACCELERATE_USE_CPU"]) == ("", "true")
    untold = environment(plan(gpus=None))
    assert "CUDA_VISIBLE_DEVICES" not in untold
    assert "ACCELERATE_USE_CPU" not in untold


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "ACCELERATE_USE_CPU", "TORCH_FR_BUFFER_SIZE"])
def test_defaults_never_replace_what_the_shell_had(
    plan: Callable[..., WorkerPlan], name: str
) -> None:
    assert environment(plan(environment={name: "mine"}))[name] == "mine"


def test_omp_num_threads_shares_the_cores(plan: Callable[..., WorkerPlan]) -> None:
    assert environment(plan(cores=16, processes_per_worker=4))["OMP_NUM_THREADS"] == "4"
    assert environment(plan(cores=1, processes_per_worker=4))["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize(
    "name", ["MASTER_ADDR", "PYTHONUNBUFFERED", "CUDA_VISIBLE_DEVICES", "CLIENT_LIB_CHECKPOINT_DIR"]
)
def test_the_users_own_wins_but_not_what_the_shell_happens_to_have(
    plan: Callable[..., WorkerPlan], name: str
) -> None:
    assert environment(plan(environment={name: "x"}, user_variables=[name]))[name] == "x"
    assert environment(plan(environment={name: "x"}))[name] != "x"


def test_nobody_overrides_the_rank(plan: Callable[..., WorkerPlan]) -> None:
    assert environment(plan(environment={"RANK": "7"}, user_variables=["RANK"]))["RANK"] == "0"


def test_what_an_outer_launcher_set_is_not_believed(plan: Callable[..., WorkerPlan]) -> None:
    stale = {"OMPI_COMM_WORLD_SIZE": "8", "TORCHELASTIC_USE_AGENT_STORE": "True", "PMI_SIZE": "8"}
    seen = environment(plan(environment=stale))
    assert not stale.items() & seen.items()
    assert stale.items() <= environment(plan(environment=stale, user_variables=list(stale))).items()


@pytest.mark.process
def test_the_variables_of_torchrun_are_there(
    plan: Callable[..., WorkerPlan], tmp_path: Path
) -> None:
    """Under the same shape, with one real agent of torchrun, whose script is no torch."""
    pytest.importorskip("torch")
    options = f"--nproc-per-node 2 --max-restarts 1 --master-port {free_port()}"
    theirs = variables_under(f"torch.distributed.run {options}", tmp_path)
    made = plan(processes_per_worker=2, max_restarts=1)
    for local_rank, added in enumerate(theirs):
        ours = environment(made, local_rank)
        assert added.keys() - ours.keys() == set()
        assert told(added) - ours.items() == set()


@pytest.mark.process
def test_the_variables_of_accelerate_are_there(
    plan: Callable[..., WorkerPlan], tmp_path: Path
) -> None:
    """Under a real launcher with FSDP, whose ranks get the most variables."""
    pytest.importorskip("accelerate")
    options = f"--use_fsdp --num_processes 2 --main_process_port {free_port()}"
    theirs = variables_under(f"accelerate.commands.launch {options}", tmp_path)
    line = launch_lines.read(["accelerate", "launch", *options.split(), "seen.py"], Machine())
    assert line
    variables = line.fields["env_variables"]
    made = plan(processes_per_worker=2, environment=variables, user_variables=list(variables))
    for local_rank, added in enumerate(theirs):
        ours = DEFAULTS_OF_ACCELERATE | environment(made, local_rank)
        assert added.keys() - ours.keys() == set()
        assert told(added) - ours.items() == set()


def variables_under(module: str, folder: Path) -> list[dict[str, str]]:
    """The variables that this launcher (a module with its options) sets for each of two ranks."""
    script = folder / "seen.py"
    script.write_text(
        "import json, os, sys\n"
        "path = sys.argv[1] + os.environ['LOCAL_RANK']\n"
        "json.dump(dict(os.environ), open(path, 'w'))\n"
    )
    before = {name: text for name, text in os.environ.items() if name not in CHOSEN}
    command = [sys.executable, "-m", *module.split(), str(script), str(folder / "seen")]
    subprocess.run(command, env=before, check=True, timeout=100)
    found = [json.loads((folder / f"seen{local_rank}").read_text()) for local_rank in range(2)]
    ours = {"TORCHELASTIC_SIGNALS_TO_HANDLE"}  # the agent's own setting, which its ranks inherit
    return [
        {name: text for name, text in seen.items() if before.get(name) != text and name not in ours}
        for seen in found
    ]


def told(added: dict[str, str]) -> set[tuple[str, str]]:
    return {(name, text) for name, text in added.items() if name not in CHOSEN}


CHOSEN = {
    "MASTER_ADDR",
    "MASTER_PORT",
    "OMP_NUM_THREADS",  # ours shares the cores of a worker
    "TORCHELASTIC_RUN_ID",  # ours is the name of the job
    "TORCHELASTIC_USE_AGENT_STORE",  # there the agent holds the store, here rank 0
    "TORCHELASTIC_ERROR_FILE",
}
"""Variables of launchers that have another value in a job."""
DEFAULTS_OF_ACCELERATE = {
    "ACCELERATE_DYNAMO_BACKEND": "NO",
    "ACCELERATE_DYNAMO_MODE": "default",
    "ACCELERATE_DYNAMO_USE_DYNAMIC": "False",
    "ACCELERATE_DYNAMO_USE_FULLGRAPH": "False",
    "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION": "False",
    "ACCELERATE_MIXED_PRECISION": "no",
}
"""Defaults of its library that accelerate's launcher repeats as variables, and a job does not."""


@pytest.mark.process
def test_lightning_and_torch_take_a_rank_for_one_of_torchrun(
    plan: Callable[..., WorkerPlan], monkeypatch: pytest.MonkeyPatch
) -> None:
    environments = pytest.importorskip("lightning.fabric.plugins.environments")
    for name, text in environment(plan(n_workers=2, processes_per_worker=2), 1).items():
        monkeypatch.setenv(name, text)
    theirs = environments.TorchElasticEnvironment()
    assert theirs.detect()
    assert (theirs.world_size(), theirs.global_rank(), theirs.local_rank()) == (4, 1, 1)
    theirs.validate_settings(num_devices=2, num_nodes=2)
    with pytest.raises(ValueError, match="does not match the world size"):
        theirs.validate_settings(num_devices=4, num_nodes=2)


def test_no_variable_of_torchrun_reaches_other_processes(plan: Callable[..., WorkerPlan]) -> None:
    for fields in (AS_IN_A_SHELL, {"type": "binary"}):
        assert "TORCHELASTIC_RUN_ID" not in environment(plan(**fields))
    assert not {"ROLE_RANK", "TORCHELASTIC_RUN_ID"} & of_no_rank(environment(plan())).keys()


RANKS = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK"}
STALE = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "3", "MASTER_ADDR": "elsewhere"}
AS_IN_A_SHELL: dict[str, Any] = {
    "environment": {"CLIENT_LIB_RANK_VARIABLES": "0"},
    "user_variables": ["CLIENT_LIB_RANK_VARIABLES"],
}


def test_a_python_line_of_one_process_sees_no_ranks(plan: Callable[..., WorkerPlan]) -> None:
    """Scripts that look for RANK (nanoGPT) would go the way of several GPUs."""
    made = plan(**AS_IN_A_SHELL)
    seen = environment(made._replace(environment={**made.environment, **STALE}))
    assert not (RANKS | {"MASTER_ADDR", "MASTER_PORT", "CLIENT_LIB_RANK_VARIABLES"}) & seen.keys()
    own = made._replace(
        environment={**made.environment, **STALE},
        user_variables=[*made.user_variables, "MASTER_ADDR"],
    )
    assert environment(own)["MASTER_ADDR"] == "elsewhere"


@pytest.mark.parametrize(
    "several", [{"n_workers": 2}, {"processes_per_worker": 2}, {"type": "pytorch_elastic"}]
)
def test_a_python_line_of_several_processes_sees_its_ranks(
    plan: Callable[..., WorkerPlan], several: dict[str, object]
) -> None:
    seen = environment(plan(**AS_IN_A_SHELL, **several))
    assert RANKS | {"MASTER_ADDR"} <= seen.keys()
    assert "CLIENT_LIB_RANK_VARIABLES" not in seen


def test_a_function_always_sees_its_rank(plan: Callable[..., WorkerPlan]) -> None:
    made = plan(**AS_IN_A_SHELL)._replace(command=[function_runner.__file__])
    assert environment(made).keys() >= RANKS


def test_a_job_submitted_by_such_a_process_has_ranks(plan: Callable[..., WorkerPlan]) -> None:
    assert environment(plan(environment=AS_IN_A_SHELL["environment"])).keys() >= RANKS


@pytest.mark.parametrize("kind", ["binary", "binary_exp"])
def test_one_binary_process_sees_only_the_ranks_of_mpi(
    plan: Callable[..., WorkerPlan], kind: str
) -> None:
    seen = environment(plan(type=kind, environment=STALE))
    assert not RANKS & seen.keys()
    assert (seen["OMPI_COMM_WORLD_RANK"], seen["OMPI_COMM_WORLD_SIZE"], seen["MASTER_ADDR"]) == (
        "0",
        "1",
        "127.0.0.1",
    )
    assert environment(plan(type=kind, n_workers=2))["WORLD_SIZE"] == "2"


def test_one_process_as_in_a_shell_gets_no_local_rank(worker: Make) -> None:
    script = (
        "import argparse, os, "
        "sys\nargparse.ArgumentParser().add_argument('--local_rank')\nprint(sys.argv[1:])"
    )
    one = worker(script, local_rank_auto=True, **AS_IN_A_SHELL)
    one.run()
    assert one.lines() == ["[]"]


@pytest.mark.parametrize(("index", "host"), [(0, "job-1-mpimaster-0"), (1, "job-1-mpiworker-0")])
@pytest.mark.parametrize("kind", ["binary", "binary_exp"])
def test_binary_types_get_what_mpi_programs_read(
    plan: Callable[..., WorkerPlan], kind: str, index: int, host: str
) -> None:
    seen = environment(
        plan(type=kind, worker=index, n_workers=2, processes_per_worker=2), local_rank=1
    )
    mpi = {name: value for name, value in seen.items() if name.startswith(("OMPI_", "PMIX_"))}
    assert mpi == {
        "OMPI_COMM_WORLD_RANK": str(2 * index + 1),
        "OMPI_COMM_WORLD_SIZE": "4",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "PMIX_HOSTNAME": host,
    }


def test_a_rank_gets_its_arguments_folder_and_path_untouched(worker: Make, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    arguments = ["--a=1", "with space", "", "'\"$HOME`", "ünï\ncode", "*"]
    for runner in (True, False):
        one = worker(SHOW, working_dir=str(elsewhere), rank_runner=runner)
        one.plan = (
            one.plan._replace(command=one.plan.command + arguments)
            if hasattr(one.plan, "_replace")
            else one.plan
        )
        data = json.loads(Path(one.directory.plan).read_text())
        data["command"] += arguments
        Path(one.directory.plan).write_text(json.dumps(data))
        one.run()
        seen, argv, folder, path, file = json.loads(one.lines()[0])
        assert argv == [str(one.script), *arguments]
        assert (folder, path, file) == (str(elsewhere), str(one.folder), str(one.script))
        assert seen["RANK"] == "0"
        assert Path(one.directory.path, "processes.json").exists()


def test_values_with_newlines_dollars_and_quotes_arrive(worker: Make) -> None:
    value = "a\nb $HOME 'x' \"y\" ünï"
    one = worker(SHOW, environment={"X": value, "PATH": os.environ["PATH"]})
    one.run()
    assert json.loads(one.lines()[0])[0]["X"] == value


def test_without_the_rank_runner_it_is_plain_python(worker: Make) -> None:
    script = "import sys; print(sys._getframe().f_back is None)"
    plain, ours = worker(script, rank_runner=False), worker(script)
    plain.run()
    ours.run()
    assert (plain.lines(), ours.lines()) == (["True"], ["False"])


def test_a_command_runs_without_a_shell(worker: Make) -> None:
    one = worker(python=None, command=["echo", "$HOME", "a  b", "*"], type="binary")
    one.run()
    assert one.lines() == ["$HOME a  b *"]


def test_python_is_python3_where_that_is_its_only_name(worker: Make, tmp_path: Path) -> None:
    """Debian's images have no `python`."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to(sys.executable)
    line = {
        "command": ["python", "-c", "print('ran')"],
        "environment": {"PATH": str(tmp_path / "bin")},
    }
    one = worker(python=None, type="binary", **line)
    one.run()
    assert one.lines() == ["ran"]


def test_a_rank_ignores_no_signal_that_the_server_was_told_to_ignore(worker: Make) -> None:
    one = worker(python=None, command=["bash", "-c", "trap -p; echo done"], type="binary")
    before = {
        signum: signal.signal(signum, signal.SIG_IGN) for signum in (signal.SIGQUIT, signal.SIGUSR1)
    }
    try:
        report = one.run()
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
    assert report["exit_code"] == 0
    assert one.lines() == ["done"]


def test_stdin_is_empty_and_sigpipe_is_as_in_a_shell(worker: Make) -> None:
    one = worker(python=None, command=["bash", "-c", "cat; yes | head -1; trap -p"], type="binary")
    assert one.run()["exit_code"] == 0
    assert (one.lines(), one.lines("stderr")) == (["y"], [])


def test_the_launcher_tells_the_number_of_threads_to_the_runtime_and_not_to_the_log(
    worker: Make,
) -> None:
    for cores, set_by_job, expected in (
        (1, {}, 1),
        (4, {}, 2),
        (4, {"OMP_NUM_THREADS": "3"}, None),
    ):
        variables = {
            name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"
        } | set_by_job
        one = worker(cores=cores, processes_per_worker=2, environment=variables).start()
        assert one.connection
        one.connection.send(control.order(control.GO))
        assert one.event() == control.READY
        started = one.connection.receive(30.0)
        assert started
        assert started["threads"] == expected
        one.report()
        assert one.lines("launcher", None) == []


def test_a_snapshot_is_unpacked_and_run_from(worker: Make, tmp_path: Path) -> None:
    import tarfile

    (tmp_path / "code" / "sub").mkdir(parents=True)
    (tmp_path / "code" / "train.py").write_text(SHOW)
    (tmp_path / "code" / "sub" / "train.log").write_text("of an earlier run\n")
    with tarfile.open(tmp_path / "code.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "code", ".")
    one = worker(
        snapshot=str(tmp_path / "code.tar.gz"),
        command=["train.py"],
        working_dir="sub",
        log_file="train.log",
    )
    one.run()
    _, argv, folder, path, _ = json.loads(one.lines()[0])
    work = one.directory.work
    assert (argv, folder, path) == ([work + "/train.py"], work + "/sub", work)
    assert one.lines("train.log", None) == []


def test_a_damaged_snapshot_is_a_failed_fetch(worker: Make, tmp_path: Path) -> None:
    (tmp_path / "code.tar.gz").write_bytes(b"<html>")
    report = worker(snapshot=str(tmp_path / "code.tar.gz"), working_dir=".").start().report()
    assert report["reason"] == "CodeFetch"
    assert "damaged" in report["message"]


# --- --local_rank


@pytest.mark.parametrize(
    ("source", "option"),
    [
        ("p.add_argument('--local_rank', type=int)", "--local_rank"),
        ("p.add_argument('--local-rank', type=int)", "--local-rank"),
        ("p.add_argument('-l', '--local-rank', '--local_rank')", "--local-rank"),
        ("@click.option('--local_rank')\ndef main(local_rank): pass", "--local_rank"),
        (
            "from click import option\n@option('--local-rank')\ndef main(local_rank): pass",
            "--local-rank",
        ),
        ("# p.add_argument('--local_rank')", None),
        ("print('--local_rank')", None),
        ("p.add_argument('--lr')", None),
        ("this is no python --local_rank", None),
        ("p.add_argument(\0'--local_rank')", None),
    ],
)
def test_which_option_a_script_declares(source: str, option: str | None) -> None:
    assert declared_option(source.encode()) == option


@pytest.mark.parametrize(
    "source",
    [
        b"-" * 200_000 + b"1  # --local_rank",  # more than the stack of Python's parser holds
        b"p.add_argument('--local_rank')\n" + b"#" * SOURCE_MAX,
    ],
    ids=["deep", "large"],
)
def test_a_script_that_takes_too_much_to_parse_declares_nothing(source: bytes) -> None:
    assert declared_option(source) is None


def test_a_script_that_declares_the_option_gets_it(worker: Make) -> None:
    script = """
        import argparse, sys
        parser = argparse.ArgumentParser()
        parser.add_argument("--local-rank", type=int, default=-1)
        parser.add_argument("rest", nargs="*")
        print(parser.parse_args())
    """
    one = worker(script, processes_per_worker=2, local_rank_auto=True)
    one.run()
    assert one.lines(rank=1) == ["Namespace(local_rank=1, rest=[])"]
    never = worker(script)
    never.run()
    assert never.lines() == ["Namespace(local_rank=-1, rest=[])"]
    always = worker("import sys; print(sys.argv[1:])", local_rank_argument="--local_rank")
    always.run()
    assert always.lines() == ["['--local_rank=0']"]


# --- libraries that read the environment alone

IMPORTS_S = 100.0  # they import much, and this machine may be busy


@pytest.mark.process
def test_accelerate_sees_the_world_from_the_environment(worker: Make) -> None:
    script = (
        "from accelerate import Accelerator; a = Accelerator(); print(a.num_processes, "
        "a.process_index, a.device.type)"
    )
    one = worker(script, processes_per_worker=2, master_port=free_port())
    assert one.start().go().report(IMPORTS_S)["exit_code"] == 0, one.lines("stderr")
    assert [one.lines(rank=rank) for rank in (0, 1)] == [["2 0 cpu"], ["2 1 cpu"]]


@pytest.mark.process
def test_transformers_see_the_world_from_the_environment(worker: Make) -> None:
    script = """
        from transformers import TrainingArguments
        arguments = TrainingArguments(output_dir="out", report_to=[])
        print(arguments.world_size, arguments.process_index, arguments.device.type)
    """
    one = worker(script, processes_per_worker=2, master_port=free_port())
    assert one.start().go().report(IMPORTS_S)["exit_code"] == 0, one.lines("stderr")
    assert [one.lines(rank=rank)[-1] for rank in (0, 1)] == ["2 0 cpu", "2 1 cpu"]


# --- where the launcher itself runs


def test_the_launcher_needs_no_more_than_python_3_8() -> None:
    folder = Path(__file__).parents[2] / "client_lib" / "worker"
    vermin = [
        sys.executable,
        "-c",
        "import vermin; vermin.main()",
        "-t=3.8-",
        "--no-tips",
        "--violations",
        str(folder),
    ]
    done = subprocess.run(vermin, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_launcher_imports_nothing_but_the_standard_library() -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\nimport client_lib.worker.launcher, "
        "client_lib.launcher_protocol.archive, client_lib.worker.zipapp_build\nprint(*[n for n in "
        "sys.modules if n.startswith(('client_lib', 'server_stub'))])\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script, str(root)],
        capture_output=True,
        text=True,
        check=True,
    )
    ours = (
        "client_lib.worker",
        "client_lib.launcher_protocol",
        "client_lib.checkpoints",
        "client_lib.durable",
    )
    assert all(name == "client_lib" or name.startswith(ours) for name in done.stdout.split())
