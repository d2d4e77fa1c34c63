"""A launcher's line means the same behind any wrapper, by any path, and in one word."""

import itertools
import shlex
import sys
import time
from pathlib import Path

import pytest

from client_lib.errors import InvalidRequest
from client_lib.launch_lines import LaunchLine, Machine, read
from client_lib.submit import launcher_line

PYTHON = ".venv/bin/python"
MACHINE = Machine(
    accelerate_config=lambda path, _: {"num_processes": 4} if path else {},
    is_file=lambda path: path == PYTHON,
)
ARGUMENTS = "--lr 0.1 --name 'a b' --out=x"
LINES = (
    f"torchrun --nproc_per_node=2 train.py {ARGUMENTS}",
    f"torchrun --nnodes 2 --nproc-per-node 4 -m pkg.train {ARGUMENTS}",
    f"python -m torch.distributed.run --nproc_per_node=2 train.py {ARGUMENTS}",
    f"accelerate launch --num_processes 2 --mixed_precision bf16 train.py {ARGUMENTS}",
    f"accelerate launch --config_file a.yaml train.py {ARGUMENTS}",
    f"python -m accelerate.commands.launch --num_processes 2 -m pkg.train {ARGUMENTS}",
    f"deepspeed --num_gpus=2 train.py {ARGUMENTS}",
    f"deepspeed --num_gpus 2 --module pkg.train {ARGUMENTS}",
    f"python train.py {ARGUMENTS}",
    f"python -u -m pkg.train {ARGUMENTS}",
)
PREFIXES = (
    "nohup",
    "time",
    "env",
    "exec",
    "nice -n 10",
    "stdbuf -oL",
    "setsid",
    "uv run",
    "uv run --frozen --extra gpu",
    "poetry run",
    "pdm run",
    "/usr/bin/env",
)


def meaning(text: str) -> LaunchLine:
    found = read(shlex.split(text), MACHINE)
    assert found is not None, text
    return found


def trained(line: LaunchLine) -> tuple[object, ...]:
    """What decides how a line trains, but for its interpreter and variables."""
    fields = {name: value for name, value in line.fields.items() if name != "env_variables"}
    fields["script"] = str(fields["script"]).replace(PYTHON, "python")
    ours = {**line.defaults.get("env_variables", {}), **line.fields.get("env_variables", {})}
    others = {name: value for name, value in line.defaults.items() if name != "env_variables"}
    return fields, others, {name: value for name, value in ours.items() if name != "A"}


SHELLS = ("bash -c", "sh -ec", "/bin/bash -euo pipefail -c")
WRAPPERS = (*PREFIXES, *SHELLS, "A=1", "env A=1 A=2")


def wrapped(text: str, wrapper: str) -> str:
    return f"{wrapper} {shlex.quote(text) if wrapper in SHELLS else text}"


@pytest.mark.parametrize("text", LINES)
def test_a_line_behind_any_two_wrappers_is_the_plain_line(text: str) -> None:
    plain = trained(meaning(text))
    for outer, inner in itertools.product(WRAPPERS, repeat=2):
        both = wrapped(wrapped(text, inner), outer)
        assert trained(meaning(both)) == plain, both


@pytest.mark.parametrize("text", LINES)
@pytest.mark.parametrize("folder", [".venv/bin/", "/opt/conda/bin/"])
def test_a_launcher_by_its_path_is_the_plain_line(text: str, folder: str) -> None:
    found = meaning(folder + text)
    script = str(found.fields["script"]).replace("/opt/conda/bin/", "")
    plain = meaning(text)
    assert (script.replace(PYTHON, "python"), found.fields["args"]) == (
        plain.fields["script"],
        plain.fields["args"],
    )
    assert found.fields.get("processes_per_worker") == plain.fields.get("processes_per_worker")
    if text.startswith("python") or folder == ".venv/bin/":
        assert found.python == folder + "python"


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("python .venv/bin/torchrun --nproc_per_node=2 t.py", "torchrun --nproc_per_node=2 t.py"),
        ("python -u /opt/bin/accelerate launch t.py", "accelerate launch t.py"),
        ("python x/torch/distributed/run.py t.py", "python -m torch.distributed.run t.py"),
        (
            "python -O -W ignore -m torch.distributed.run --nproc_per_node 2 t.py",
            "python -m torch.distributed.run --nproc_per_node 2 t.py",
        ),
        ("uv run t.py --lr 1", "python t.py --lr 1"),
        ("uv run -m pkg.train --lr 1", "python -m pkg.train --lr 1"),
        ("uv run --script t.py", "python t.py"),
        ("uv run -- torchrun t.py", "torchrun t.py"),
    ],
)
def test_other_forms_of_a_line(text: str, plain: str) -> None:
    assert trained(meaning(text)) == trained(meaning(plain))


def test_a_wrapper_says_fields_of_the_job() -> None:
    conda = meaning("conda run --no-capture-output -n llm torchrun t.py")
    assert (conda.fields["conda_env"], conda.fields["script"]) == ("llm", "t.py")
    assert meaning("micromamba run --prefix=/opt/e python t.py").fields["conda_env"] == "/opt/e"
    packages = meaning("uv run --with einops,rich --with=trl python t.py").fields["requirements"]
    assert packages == ["einops", "rich", "trl"]
    assert meaning("A=1 env B=x=y torchrun t.py").fields["env_variables"] == {"A": "1", "B": "x=y"}
    assert meaning("A=1 ./measure.sh -x").fields == {
        "script": "./measure.sh",
        "args": ["-x"],
        "env_variables": {"A": "1"},
    }


@pytest.mark.parametrize(
    "wrapper", ["{} {}", "env {} {}", "nohup env A=1 {} {}", "A=1 bash -c '{} {}'"]
)
def test_a_launcher_reads_the_variables_of_its_line(wrapper: str) -> None:
    """As torchrun and accelerate do in a shell."""

    def behind(variables: str, launcher: str, machine: Machine = MACHINE) -> LaunchLine:
        found = read(shlex.split(wrapper.format(variables, launcher)), machine)
        assert found is not None
        return found

    variables = "PET_NNODES=2 PET_NPROC_PER_NODE=4"
    fields = behind(variables, "torchrun t.py").fields
    assert (fields["n_workers"], fields["processes_per_worker"]) == (2, 4)
    fields = behind(variables, "torchrun --nnodes 3 t.py").fields
    assert (fields["n_workers"], fields["processes_per_worker"]) == (3, 4)
    shell = Machine(environment={"PET_NNODES": "5"})
    assert behind("PET_NNODES=2", "torchrun t.py", shell).fields["n_workers"] == 2
    configured = Machine(
        accelerate_config=lambda _, variables: (
            {"num_processes": 8} if variables.get("HF_HOME") == "x" else {}
        )
    )
    fields = behind("HF_HOME=x", "accelerate launch t.py", configured).fields
    assert fields["processes_per_worker"] == 8


def test_the_interpreter_is_that_of_the_project() -> None:
    assert meaning("uv run torchrun t.py").python == PYTHON
    above = Machine(is_file=lambda path: path == "../../.venv/bin/python")
    found = read(["uv", "run", "python", "t.py"], above)
    assert found is not None
    assert found.python == "../../.venv/bin/python"
    nowhere = read(["poetry", "run", "python", "t.py"], Machine())
    assert nowhere is not None
    assert "there is no .venv here" in nowhere.notices[0]


@pytest.mark.parametrize(
    "text",
    [
        "uv run -m pkg.mod --x 1",
        "uv run python -O t.py",
        "uv run python3 -m pkg.mod",
        "uv run torchrun --nproc_per_node 2 -m pkg.mod",
        "poetry run accelerate launch --num_processes 2 -m pkg.mod",
        "uv run torchrun --no-python python t.py",
    ],
)
def test_the_interpreter_of_the_project_runs_modules_too(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    found = launcher_line.read({"script": text}, local=True)
    assert found is not None
    assert found.fields["script"].split()[0] == found.python == str(python)
    again = launcher_line.read(found.fields, local=True)
    assert again is None or str(python) in (again.python, again.fields["script"].split()[0])
    elsewhere = launcher_line.read({"script": text}, local=False)
    assert elsewhere is not None
    assert elsewhere.fields["script"].split()[0] in ("python", "python3")


UNREAD = (
    "bash -c 'cd x && torchrun --nproc_per_node 2 t.py'",
    "sh -c 'source a; exec python -m torch.distributed.run t.py 2>&1 | tee log'",
    "bash -c 'if true; then torchrun --nproc_per_node 2 t.py; fi'",
    "bash -c 'for i in 1 2; do A=$i; ! torchrun --nproc_per_node 2 t.py; done'",
    "bash -c '{ eval nohup torchrun --nproc_per_node 2 t.py; }'",
    "env -u A torchrun t.py",
    "uv run --python 3.12 torchrun --nproc_per_node 4 t.py",
    "conda run --cwd /x -n e accelerate launch --num_processes 2 t.py",
)


@pytest.mark.parametrize("text", UNREAD)
def test_a_line_that_cannot_be_read_runs_as_it_is_with_a_warning(text: str) -> None:
    found = meaning(text)
    assert [found.fields["script"], *found.fields["args"]] == shlex.split(text)
    assert found.defaults["processes_per_worker"] == 1
    assert "this line is not read: " in found.notices[0]


@pytest.mark.parametrize("text", UNREAD)
def test_separate_trainings_in_several_workers_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="a training of its own in each of the 2 workers"):
        read(shlex.split(text), MACHINE, 2)


@pytest.mark.parametrize(
    "text",
    [
        "bash -c 'cd x && torchrun --nnodes 2 --nproc_per_node 2 t.py'",
        "bash -c 'cd x && torchrun $OPTIONS t.py'",
        "timeout 60 torchrun --nproc_per_node 2 t.py",
        "numactl -N 0 accelerate launch --num_processes 2 t.py",
    ],
)
def test_what_may_be_one_training_is_not_refused(text: str) -> None:
    found = read(shlex.split(text), MACHINE, 2)
    assert found is not None
    assert "this line is not read: " in found.notices[0]


SCRIPTS = {
    "run.sh": "# don't\ncd x\nif [ -f y ]; then\n  torchrun \\\n  --nnodes 1 t.py\nfi\n",
    "plain.sh": "python t.py\necho 'torchrun t.py'\n",
    "broken.sh": 'echo "\ntorchrun"\n',
}
WITH_SCRIPTS = Machine(is_file=SCRIPTS.__contains__, text=SCRIPTS.get)


@pytest.mark.parametrize(
    "text", ["bash run.sh a", "sh -ex run.sh", "run.sh", "nohup bash run.sh", "A=1 bash run.sh"]
)
def test_a_script_with_a_launcher_is_started_once_in_each_worker(text: str) -> None:
    found = read(shlex.split(text), WITH_SCRIPTS, 2)
    assert found is not None
    assert [found.fields["script"], *found.fields["args"]] == shlex.split(text.removeprefix("A=1 "))
    assert found.defaults["processes_per_worker"] == 1
    assert "this line is not read: torchrun itself runs in each worker" in found.notices[0]


@pytest.mark.parametrize("text", ["bash plain.sh", "bash none.sh", "bash -x", "sh broken.sh"])
def test_a_script_without_a_launcher_is_left_alone(text: str) -> None:
    assert read(shlex.split(text), WITH_SCRIPTS, 2) is None


def test_a_script_that_this_machine_may_not_read_is_left_alone() -> None:
    def text(path: str) -> str:
        raise InvalidRequest(f"{path} can't be read")

    assert read(["bash", "run.sh"], Machine(is_file=lambda _: True, text=text)) is None


@pytest.mark.parametrize(
    "text",
    [
        "t.py --launcher torchrun",
        "./run.sh torchrun",
        "bash run.sh torchrun x",
        "bash -c 'cd x && ./go'",
        "nohup ./go",
        "uv pip list",
        "A=1",
        "env",
        "nohup",
        "uv run",
        "bash -c",
        "bash -c ''",
        'bash -c "\'"',
    ],
)
def test_lines_without_a_launcher_are_left_alone(text: str) -> None:
    assert read(shlex.split(text), MACHINE, 2) is None


@pytest.mark.parametrize("wrapper", ["", *WRAPPERS])
def test_one_word_is_split_and_reading_twice_changes_nothing(wrapper: str) -> None:
    for text in LINES:
        if "a.yaml" in text:
            continue  # it is read from the disk here
        line = wrapped(text, wrapper) if wrapper else text
        one = launcher_line.read({"script": line}, local=True)
        program, *arguments = shlex.split(line)
        several = launcher_line.read(
            {"script": shlex.quote(program), "args": arguments}, local=True
        )
        assert one is not None
        assert several is not None
        assert one.fields == several.fields
        again = launcher_line.read(one.fields, local=True)
        assert again is None or again.fields == one.fields


@pytest.mark.parametrize(
    "words",
    [
        ["env"] * 10_000,
        ["tool"] + ["env"] * 10_000,
        ["tool"] + ["x"] * 10_000,
        ["bash", "-c", "; ".join(["env env"] * 3000)],
        ["bash", "-c", "env " * 10_000],
    ],
    ids=lambda words: " ".join(words)[:12],
)
def test_a_long_line_is_read_in_a_moment(words: list[str]) -> None:
    began = time.process_time()
    found = read([*words, "python", "t.py"], MACHINE, 2)
    assert found is None or found.launcher == "command"
    assert time.process_time() - began < 2


@pytest.mark.parametrize("launcher", ["torchrun", "accelerate launch", "deepspeed"])
def test_a_module_without_its_option_is_told(launcher: str) -> None:
    notice = f"there is no file pkg.train; a module is started by `{launcher} --module pkg.train`"
    assert notice in meaning(f"{launcher} pkg.train").notices
    there = Machine(is_file=lambda path: path == "pkg.train")
    found = read([*launcher.split(), "pkg.train"], there)
    assert found is not None
    assert not found.notices
    assert not meaning(f"{launcher} train.py").notices
