"""From options and a file to the spec: nothing is missing, the command line wins, what
follows SCRIPT is its own.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command

from client_lib.cli import app, job_options, submit_steps
from client_lib.cli.connection import Connection
from client_lib.cli.job_options import ConfigOption, job_command
from client_lib.cli.parameters import CommandApp
from client_lib.errors import InvalidRequest
from client_lib.spec.job import CheckpointParams, HealthParams, JobSpec
from client_lib.spec.validation import descriptions
from client_lib.submit import launcher_line


def spec_of(*line: str) -> JobSpec:
    """The spec that `client-lib submit LINE` would submit."""
    commands = CommandApp()

    @job_command(commands, "submit")
    def describe(ctx: typer.Context, config: ConfigOption = None, **values: Any) -> JobSpec:
        return submit_steps.job_of(ctx, Connection("http://127.0.0.1:9"), config, values).job.spec

    command: Any = get_command(commands)
    with command.make_context("submit", list(line)) as context:
        spec: JobSpec = command.invoke(context)
    return spec


@contextmanager
def usage_error(about: str) -> Iterator[None]:
    with pytest.raises(typer.TyperException) as wrong:
        yield
    assert about in wrong.value.format_message()


def parameters_of(name: str) -> list[Any]:
    group: Any = get_command(app.app)
    return list(group.get_command(None, name).params)


@pytest.mark.parametrize("name", ["submit", "run", "render"])
def test_every_field_of_the_spec_has_an_option(name: str) -> None:
    assert {parameter.name for parameter in parameters_of(name)} >= set(JobSpec.model_fields)


def test_every_option_says_what_the_spec_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["submit", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for name, text in descriptions(JobSpec).items():
        if name not in job_options.POSITIONAL:
            assert " ".join(text.split()[:2]).replace("None:", "Without it:") in shown


def test_every_field_stands_under_one_heading() -> None:
    fields = [name for fields in job_options.HEADINGS.values() for name in fields]
    assert sorted(fields) == sorted(set(JobSpec.model_fields) - job_options.POSITIONAL)
    assert len(next(iter(job_options.HEADINGS.values()))) == 10


@pytest.mark.parametrize("name", ["submit", "render", "run"])
def test_the_help_shows_the_common_options_first(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run([name, "--help"]) == 0
    shown = capsys.readouterr().out
    headings = [shown.index(f"\n{heading}:\n") for heading in job_options.HEADINGS]
    assert headings == sorted(headings)


@pytest.mark.parametrize("name", sorted(set(app.COMMANDS) - {"serve"}))
def test_no_help_shows_a_default_of_the_machinery(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert [
        word
        for word in ("Pydantic", "<factory>", "Default: []", "Default: {}", "[default: ]")
        if word in shown
    ] == []


def test_a_job_does_not_inherit_that_the_command_line_loads_no_plugins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PYDANTIC_DISABLE_PLUGINS", raising=False)
    assert app.run(["submit", "--help"]) == 0
    assert "PYDANTIC_DISABLE_PLUGINS" not in os.environ
    monkeypatch.setenv("PYDANTIC_DISABLE_PLUGINS", "logfire")
    assert app.run(["submit", "--help"]) == 0
    assert os.environ["PYDANTIC_DISABLE_PLUGINS"] == "logfire"


def test_no_two_options_have_one_name() -> None:
    names = [name for parameter in parameters_of("submit") for name in parameter.opts]
    assert len(names) == len(set(names))


def test_all_behind_the_script_is_its_own() -> None:
    spec = spec_of(
        "-N", "2", "train.py", "--epochs", "3", "-n", "--", "-f", "--name", "x", "", "a b", "ü"
    )
    assert (spec.script, spec.n_workers, spec.name) == ("train.py", 2, None)
    assert spec.args == ["--epochs", "3", "-n", "--", "-f", "--name", "x", "", "a b", "ü"]


def test_two_dashes_in_front_of_the_script_end_our_options_too() -> None:
    spec = spec_of("-t", "binary", "--", "./measure.sh", "-v")
    assert (spec.script, spec.args) == ("./measure.sh", ["-v"])


def test_only_what_was_given_is_sent() -> None:
    assert spec_of("train.py").model_fields_set == {"script"}


def test_a_value_of_every_kind_arrives_in_its_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FROM_HERE", "here")
    line = (
        "-i a100.8gpu --processes-per-worker 4 --gpus 0,2 --gpus 3 -e A=1=2 -e FROM_HERE -e "
        "EMPTY= --flag lr=0.1 "
    )
    line += (
        "--flag verbose -l team=vision --secret HF_TOKEN --grace-s 2.5 --no-internet "
        "--priority-class high "
    )
    line += (
        "--health-params log_period=30,action=restart,sub_actions=notify --elastic-min-workers "
        "default train.py"
    )
    spec = spec_of(*line.split())
    assert (spec.instance_type, spec.processes_per_worker, spec.gpus) == ("a100.8gpu", 4, [0, 2, 3])
    assert spec.env_variables == {"A": "1=2", "FROM_HERE": "here", "EMPTY": ""}
    assert spec.flags == {"lr": "0.1", "verbose": None}
    assert (spec.labels, spec.secrets, spec.grace_s, spec.internet) == (
        {"team": "vision"},
        ["HF_TOKEN"],
        2.5,
        False,
    )
    assert spec.health_params == HealthParams.model_validate(
        {"log_period": 30, "action": "restart", "sub_actions": ["notify"]}
    )
    assert (spec.priority_class.value, spec.elastic_min_workers) == ("high", "default")


def test_checkpoint_params_are_keys_and_values() -> None:
    text = "keep=3,from_step=400,damaged=leave"
    params = spec_of("--checkpoint-params", text, "train.py").checkpoint_params
    assert params == CheckpointParams(keep=3, from_step=400, damaged="leave")


def test_an_empty_log_file_turns_it_off() -> None:
    assert spec_of("--log-file", "", "train.py").log_file is None
    assert spec_of("train.py").log_file == "train.log"


@pytest.mark.parametrize(
    ("line", "about"),
    [
        (["--nothing-like-it", "train.py"], "--nothing-like-it"),
        (["-N", "two", "train.py"], "'two'"),
        (["--processes-per-worker", "some", "train.py"], "'some'"),
        (["--gpus", "0,x", "train.py"], "'x'"),
        (["-t", "mpi", "train.py"], "'mpi'"),
        (["-e", "=1", "train.py"], "'=1'"),
        (["-e", "SURELY_NOT_SET_HERE", "train.py"], "SURELY_NOT_SET_HERE is not set here"),
        (["-l", "team", "train.py"], "KEY=VALUE"),
        (["--health-params", "log_period", "train.py"], "'log_period'"),
        ([], "which SCRIPT?"),
    ],
)
def test_a_wrong_option_is_named(line: list[str], about: str) -> None:
    with usage_error(about):
        spec_of(*line)


@pytest.mark.parametrize(
    ("line", "about"),
    [
        (["-N", "0", "train.py"], "n_workers"),
        (["-N", "1000000", "train.py"], "n_workers"),
        (["--name", "Not_A_Label", "train.py"], "Not_A_Label"),
        (["--name", "x" * 51, "train.py"], "51 characters"),
        (["-e", "RANK=0", "train.py"], "RANK"),
        (["train.py | tee log"], "bash -c"),
        (["--image", "train.py", "train.py"], "script='train.py'"),
        ([""], "script='': is empty"),
    ],
)
def test_a_value_that_no_job_can_have_is_named(line: list[str], about: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        spec_of(*line)
    assert about in refused.value.message


# --- -c FILE


def write(folder: Path, text: str) -> str:
    path = folder / "job.yaml"
    path.write_text(text)
    return str(path)


def test_the_command_line_wins_over_the_file_and_adds_to_its_mappings(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "script: echo\nn_workers: 4\nenv_variables: {A: 1, B: 2}\nargs: [x]\nlog_file: null\n",
    )
    spec = spec_of("-c", file, "-N", "2", "-e", "B=3")
    assert (spec.n_workers, spec.env_variables, spec.args, spec.log_file) == (
        2,
        {"A": 1, "B": "3"},
        ["x"],
        None,
    )
    assert spec_of("-c", file, "echo", "y").args == ["y"]


def test_a_script_of_the_file_lies_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my train.py").touch()
    (tmp_path / "train.py").touch()
    monkeypatch.chdir("/")
    assert (
        spec_of("-c", write(tmp_path, "script: my train.py")).script == f"'{tmp_path}/my train.py'"
    )
    assert (
        spec_of("-c", write(tmp_path, "script: train.py --lr 1")).script
        == f"{tmp_path}/train.py --lr 1"
    )
    assert (
        spec_of("-c", write(tmp_path, "script: nvidia-smi -L\nworking_dir: sub")).script
        == "nvidia-smi -L"
    )


def test_a_line_longer_than_any_name_of_a_file_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    words = " --lr 0.1" * 40
    assert (
        spec_of("-c", write(tmp_path, f"script: train.py{words}")).script
        == f"{tmp_path}/train.py{words}"
    )
    assert spec_of("x" * 300 + ".py", "--name", "x").args == ["--name", "x"]


def test_json_is_yaml(tmp_path: Path) -> None:
    assert (
        spec_of("-c", write(tmp_path, json.dumps({"script": "echo", "n_workers": 3}))).n_workers
        == 3
    )


@pytest.mark.parametrize(
    ("text", "about"),
    [
        ("script: echo\nn_worker: 2\n", "unknown field 'n_worker'; did you mean 'n_workers'?"),
        ("script: echo\nn_workers: '2'\n", "n_workers"),
        ("script: echo\nname: a\nname: b\n", "'name' stands there twice"),
        ("script: [echo\n", "not valid YAML"),
        ("- script\n", "holds no fields"),
        ("", "holds no fields"),
        ("script: !!python/object/apply:os.system [id]\n", "not valid YAML"),
        ("script: " + "[" * 2000, "not valid YAML"),
        ("script: !!bool echo\n", "not valid YAML"),
        ("script: !!map [echo]\n", "not valid YAML"),
        ("script: [echo]\n", "script=['echo']"),
        ("script: echo\nafter: 3\n", "after.0=3"),
    ],
)
def test_a_wrong_file_is_explained(tmp_path: Path, text: str, about: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        spec_of("-c", write(tmp_path, text))
    assert about in refused.value.message


@pytest.mark.parametrize(
    ("field", "about"), [("args: 3", "args=3"), ("instance_type: [a]", "instance_type=['a']")]
)
@pytest.mark.parametrize("script", ["train.py", "torchrun train.py"])
def test_a_file_is_checked_before_it_is_compared_with_the_line(
    tmp_path: Path, script: str, field: str, about: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        spec_of("-c", write(tmp_path, field), script)
    assert about in refused.value.message


def test_a_mapping_of_the_file_may_repeat_another(tmp_path: Path) -> None:
    file = write(
        tmp_path, "script: echo\nlabels: &a {team: vision, run: '1'}\nflags: {<<: *a, run: '2'}\n"
    )
    assert spec_of("-c", file).flags == {"team": "vision", "run": "2"}


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="no-such"):
        submit_steps.read_job_file(str(tmp_path / "no-such.yaml"))


def test_merging_leaves_both_sides_as_they_were() -> None:
    file: dict[str, Any] = {"labels": {"a": "1"}, "args": ["x"]}
    line: dict[str, Any] = {"labels": {"b": "2"}}
    before = json.dumps([file, line])
    assert launcher_line.merged(file, line) == {"labels": {"a": "1", "b": "2"}, "args": ["x"]}
    assert json.dumps([file, line]) == before


# --- a launcher's line in the place of the script


def test_a_launchers_line_is_read_and_shown_in_our_words(
    capsys: pytest.CaptureFixture[str],
) -> None:
    spec = spec_of(
        "--name",
        "x",
        "torchrun",
        "--nnodes",
        "2",
        "--nproc-per-node=2",
        "--rdzv-id=7",
        "train.py",
        "--lr",
        "a b",
    )
    assert (spec.script, spec.args, spec.name) == ("train.py", ["--lr", "a b"], "x")
    assert (spec.n_workers, spec.processes_per_worker) == (2, 2)
    assert capsys.readouterr().err.splitlines() == [
        (
            "torchrun line read as: client-lib submit -N 2 --processes-per-worker 2 train.py --lr "
            "'a b'"
        ),
        "--rdzv-id has no effect here: the workers of a job find each other by themselves",
    ]


def test_an_option_fills_what_a_launchers_line_leaves_open() -> None:
    line = "-N 3 --processes-per-worker 2 -t torchrun torchrun --max-restarts 1 train.py"
    spec = spec_of(*line.split())
    assert (spec.n_workers, spec.processes_per_worker, spec.max_retry) == (3, 2, 1)
    assert spec_of("torchrun", "train.py").processes_per_worker == 1
    assert spec_of(
        "-e", "A=1", "accelerate", "launch", "--mixed_precision=no", "train.py"
    ).env_variables == {
        "A": "1",
        "ACCELERATE_MIXED_PRECISION": "no",
        "CLIENT_LIB_RANK_VARIABLES": "0",
    }


def test_cores_come_from_the_instance_type() -> None:
    line = ["torchrun", "--nproc-per-node=cpu", "train.py"]
    assert spec_of("-i", "cpu.3C.8G", *line).processes_per_worker == 3
    assert spec_of("-i", "a100.1gpu.80vG.12C.96G", *line).processes_per_worker == 12
    with pytest.raises(InvalidRequest, match="give the number"):
        spec_of("-i", "a100.8gpu", *line)


@pytest.mark.parametrize(
    ("line", "about"),
    [
        ("-N 3 torchrun --nnodes 2 train.py", "-N=3 contradicts --nnodes 2, which is -N=2"),
        (
            "--processes-per-worker 4 torchrun --nproc-per-node 2 train.py",
            "contradicts --nproc-per-node 2",
        ),
        (
            "-N 2 accelerate launch --num_processes 4 train.py",
            "contradicts accelerate launch without --num_machines",
        ),
        (
            "-e ACCELERATE_MIXED_PRECISION=fp16 accelerate launch --mixed_precision bf16 train.py",
            "-e ACCELERATE_MIXED",
        ),
        ("nothing/python -m torch.distributed.run train.py", "there is no program nothing/python"),
        ("accelerate launch --config_file none.yaml train.py", "none.yaml can't be read"),
    ],
)
def test_a_launchers_line_that_contradicts_the_options_is_refused(line: str, about: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        spec_of(*line.split())
    assert about in str(refused.value)


@pytest.mark.parametrize("variables", ["abc", "[ANY]"])
def test_a_file_of_a_launchers_line_is_checked_as_any_other(tmp_path: Path, variables: str) -> None:
    (tmp_path / "train.py").touch()
    with pytest.raises(InvalidRequest, match="env_variables"):
        spec_of(
            "-c",
            write(tmp_path, f"env_variables: {variables}"),
            "python",
            str(tmp_path / "train.py"),
        )


def test_accelerates_config_file_is_found_where_accelerate_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    line = ["accelerate", "launch", "train.py"]
    assert spec_of(*line).processes_per_worker == "default"
    file = tmp_path / "accelerate" / "default_config.yaml"
    file.parent.mkdir()
    file.write_text("distributed_type: MULTI_GPU\nnum_processes: 4\nnum_machines: 2\n")
    assert (spec_of(*line).n_workers, spec_of(*line).processes_per_worker) == (2, 2)
    file.write_text("{")
    with pytest.raises(InvalidRequest, match="is not valid JSON or YAML"):
        spec_of(*line)


def test_with_type_binary_a_launcher_is_a_command_like_any_other() -> None:
    spec = spec_of("-t", "binary", "torchrun", "--nproc-per-node", "2", "train.py")
    assert (spec.script, spec.args) == ("torchrun", ["--nproc-per-node", "2", "train.py"])
