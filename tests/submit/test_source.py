import os
from pathlib import Path

import pytest

from client_lib.errors import InvalidRequest
from client_lib.spec.command_line import split_script
from client_lib.spec.job import JobSpec, JobType
from client_lib.submit.source import (
    Source,
    place_in_root,
    resolve,
    shared_folder_proof,
    snapshot_root,
)
from tests.kit.rights import file_modes_hold
from tests.kit.small_disk import no_file_grows_over

PYTORCH2, BINARY = JobType.PYTORCH2, JobType.BINARY


@pytest.fixture
def here(folder: Path) -> Path:
    (folder / "train.py").write_text("pass\n")
    return folder


def test_a_relative_script_becomes_absolute_and_keeps_its_arguments(here: Path) -> None:
    source = resolve("train.py --lr 0.1 'a b'", PYTORCH2, here)
    assert split_script(source.text) == [str(here / "train.py"), "--lr", "0.1", "a b"]
    assert source.script == here / "train.py"


def test_an_absolute_script_stays(here: Path) -> None:
    assert resolve(str(here / "train.py"), PYTORCH2, Path("/")).script == here / "train.py"


@pytest.mark.parametrize(
    "name", ["my train.py", "it's.py", "a&b.py", "$HOME.py", "train (1).py", 'say "x".py']
)
def test_an_existing_path_wins_over_splitting(here: Path, name: str) -> None:
    (here / name).write_text("pass\n")
    source = resolve(name, PYTORCH2, here)
    assert split_script(source.text) == [str(here / name)]
    assert source.script == here / name


def test_a_name_with_a_space_that_is_not_there_is_split(here: Path) -> None:
    assert split_script(resolve("train.py 1", PYTORCH2, here).text)[1:] == ["1"]


def test_the_home_is_understood(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(here))
    assert resolve("~/train.py", PYTORCH2, Path("/")).script == here / "train.py"


def test_a_missing_script_names_the_nearest_files(here: Path) -> None:
    (here / "trainer.py").touch()
    with pytest.raises(InvalidRequest, match=r"there is no .*/trian\.py") as caught:
        resolve("trian.py", PYTORCH2, here)
    assert "train.py" in (caught.value.hint or "")


def test_a_missing_folder_is_said_to_be_missing(here: Path) -> None:
    with pytest.raises(InvalidRequest) as caught:
        resolve("nowhere/train.py", PYTORCH2, here)
    assert "isn't there either" in (caught.value.hint or "")


def test_a_script_that_is_a_directory(here: Path) -> None:
    (here / "folder.py").mkdir()
    with pytest.raises(InvalidRequest, match="is a directory"):
        resolve("folder.py", PYTORCH2, here)
    with pytest.raises(InvalidRequest, match="is a directory"):
        resolve(".", PYTORCH2, here)


def test_a_script_below_a_file(here: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"train\.py is no folder"):
        resolve("train.py/other.py", PYTORCH2, here)


def test_an_unreadable_script(here: Path) -> None:
    (here / "train.py").chmod(0)
    with file_modes_hold(), pytest.raises(InvalidRequest, match="can't be read"):
        resolve("train.py", PYTORCH2, here)


@pytest.mark.parametrize(
    "command", ["bash -c 'echo $HOME'", 'python3 -c "print(1)"', "sleep infinity", "/bin/sh x.sh"]
)
@pytest.mark.parametrize("job_type", [BINARY, PYTORCH2])
def test_a_command_is_left_as_it_is(here: Path, command: str, job_type: JobType) -> None:
    assert resolve(command, job_type, here) == Source(command, None, here)


def test_a_line_longer_than_any_name_of_a_file_is_split(here: Path) -> None:
    words = " --lr 0.1" * 40
    assert resolve(f"train.py{words}", PYTORCH2, here).text == f"{here}/train.py{words}"
    assert resolve(f"echo{words}", BINARY, here).text == f"echo{words}"
    with pytest.raises(InvalidRequest, match="can't be read: File name too long"):
        resolve("x" * 300 + ".py", PYTORCH2, here)


def test_shell_syntax_is_refused_with_the_way_out(here: Path) -> None:
    with pytest.raises(InvalidRequest, match="bash -c"):
        resolve("echo a && echo b", BINARY, here)


def test_a_shell_script_of_this_folder_is_found_and_started(here: Path) -> None:
    (here / "job.sh").write_text("echo\n")
    assert resolve("job.sh 1", BINARY, here).text == "bash ./job.sh 1"
    (here / "job.sh").chmod(0o755)
    assert resolve("job.sh 1", BINARY, here).text == "./job.sh 1"


def test_the_python_of_a_conda_environment_runs_a_script_of_the_binary_types(here: Path) -> None:
    assert resolve("train.py --x", BINARY, here, in_conda=True).text == "python ./train.py --x"
    assert resolve("sleep 1", BINARY, here, in_conda=True).text == "sleep 1"


def test_a_python_file_of_a_command_type_needs_its_interpreter(here: Path) -> None:
    with pytest.raises(InvalidRequest, match="can't be executed") as caught:
        resolve("train.py --x", BINARY, here)
    assert caught.value.hint == "write python train.py --x"


def test_a_missing_relative_command_is_found_out_here(here: Path) -> None:
    with pytest.raises(InvalidRequest, match="there is no"):
        resolve("./jub.sh", BINARY, here)


# --- proof


def test_a_proof_is_there_while_the_block_runs_and_gone_after_it(here: Path) -> None:
    with shared_folder_proof(here) as proof:
        assert proof
        assert Path(proof.path).parent == here
        assert Path(proof.path).read_text() == proof.nonce
    assert os.listdir(here) == ["train.py"]


def test_a_proof_is_gone_also_after_an_error(here: Path) -> None:
    with pytest.raises(RuntimeError), shared_folder_proof(here):
        raise RuntimeError
    assert os.listdir(here) == ["train.py"]


def test_no_proof_can_be_given_where_nothing_can_be_written(here: Path) -> None:
    with shared_folder_proof(here / "nowhere") as proof:
        assert proof is None


def test_no_proof_can_be_given_on_a_full_disk(here: Path) -> None:
    with no_file_grows_over(0), shared_folder_proof(here) as proof:
        assert proof is None
    assert os.listdir(here) == ["train.py"]


# --- root of a snapshot


@pytest.mark.parametrize("mark", [".git", "pyproject.toml"])
def test_the_root_is_the_nearest_folder_above_with_a_mark(folder: Path, mark: str) -> None:
    (folder / mark).mkdir()
    (folder / "a" / "b").mkdir(parents=True)
    assert snapshot_root(folder / "a" / "b", Path("/home/x")) == folder


def test_without_a_mark_the_root_is_the_folder_itself(folder: Path) -> None:
    assert snapshot_root(folder, Path("/home/x")) == folder


def test_the_home_and_what_is_above_it_are_never_a_root(folder: Path) -> None:
    (folder / ".git").mkdir()
    (folder / "code").mkdir()
    assert snapshot_root(folder / "code", home=folder) == folder / "code"
    for forbidden, which in (
        (folder, "is your"),
        (folder.parent, "contains your"),
        (Path("/"), "contains your"),
    ):
        with pytest.raises(InvalidRequest, match=f"{forbidden} {which} home directory"):
            snapshot_root(forbidden, home=folder)


def in_root(
    script: Path | None, cwd: Path, root: Path, working_dir: str | None = None
) -> tuple[str | None, str]:
    return place_in_root(
        Source("x", script, cwd), JobSpec(script="x", working_dir=working_dir), root
    )


def test_places_are_relative_to_the_root(folder: Path) -> None:
    (folder / "src").mkdir()
    script = folder / "src" / "train.py"
    assert in_root(script, folder, folder) == ("src/train.py", ".")
    assert in_root(script, folder / "src", folder) == ("src/train.py", "src")
    assert in_root(script, Path("/"), folder) == ("src/train.py", "src")
    assert in_root(script, folder, folder, "src") == ("src/train.py", "src")
    assert in_root(None, folder, folder) == (None, ".")


def test_a_working_directory_outside_of_the_root_is_refused(folder: Path) -> None:
    with pytest.raises(InvalidRequest, match="not in the snapshot's folder"):
        in_root(folder / "train.py", folder, folder, "/data")


def test_a_root_that_was_reached_through_a_link(folder: Path) -> None:
    (folder / "real").mkdir()
    (folder / "link").symlink_to("real")
    root = snapshot_root(folder / "link", Path("/home/x"))
    assert in_root(folder / "link" / "train.py", folder / "link", root) == ("train.py", ".")
