"""Checkpoints of another job, copied by worker 0 before any rank starts."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import client_lib
from client_lib.launcher_protocol.directory import Directory
from client_lib.launcher_protocol.reasons import CannotStart
from client_lib.worker.preparation import copy_checkpoints, prepare
from tests.worker.conftest import Worker


def before(folder: Path) -> str:
    """What a job has left; a glob of its folder."""
    left = folder / "train-1a2b3c4d"
    (left / "deep").mkdir(parents=True)
    (left / "deep" / "step").write_text("7")
    return str(folder / "*-1a2b3c4d")


@pytest.mark.parametrize("there", [[], ["next"], ["next/.copying.new/half"]])
def test_a_copy_is_what_the_next_job_begins_with(tmp_path: Path, there: list[str]) -> None:
    """Another worker, or the mount of a volume, may have made the folder; a worker
    that died leaves half a copy.
    """
    pattern, target = before(tmp_path), tmp_path / "next"
    for folder in there:
        (tmp_path / folder).mkdir(parents=True)
    copy_checkpoints(pattern, str(target))
    assert [path.name for path in target.rglob("*")] == ["deep", "step"]
    (target / "deep" / "step").write_text("8")
    assert (tmp_path / "train-1a2b3c4d" / "deep" / "step").read_text() == "7"


KILLED_AT = """
import os, signal, sys
sys.path.insert(0, {root!r})
from client_lib.worker.preparation import copy_checkpoints
left = {step}
def count(event, _):
    global left
    if event.partition(".")[0] in ("os", "shutil", "open"):
        left -= 1
        if left == -1:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(count)
copy_checkpoints(*{arguments!r})
"""


def killed_copy(step: int, pattern: str, target: Path) -> bool:
    """Copy in a process that is killed at one of its system calls. False: it ended before."""
    root = str(Path(client_lib.__file__).parents[1])
    script = KILLED_AT.format(root=root, step=step, arguments=(pattern, str(target)))
    return (
        subprocess.run([sys.executable, "-I", "-S", "-c", script], check=False).returncode
        == -signal.SIGKILL
    )


def content(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.process
@pytest.mark.parametrize("resumes", ["the same job", "another job"])
def test_a_copy_that_was_killed_is_never_taken_for_a_whole_one(
    tmp_path: Path, resumes: str
) -> None:
    pattern, source = before(tmp_path), tmp_path / "train-1a2b3c4d"
    (source / "last").write_text("deep/step")
    step = 0
    while killed_copy(step, pattern, target := tmp_path / f"next-{step}"):
        if resumes == "the same job":
            copy_checkpoints(pattern, str(target))
        else:
            first, target = target, tmp_path / f"after-{step}"
            if (first / ".copying.new").exists():
                with pytest.raises(OSError, match="was stopped while it copied"):
                    copy_checkpoints(str(first), str(target))
                assert not target.exists()
                step += 1
                continue
            copy_checkpoints(str(first), str(target))
        begun = resumes == "the same job" or (first.exists() and any(first.iterdir()))
        assert content(target) == (content(source) if begun else {})
        step += 1
    assert step > 10


def test_a_job_keeps_files_whose_names_look_like_those_of_a_copy(tmp_path: Path) -> None:
    target = tmp_path / "next"
    target.mkdir()
    (target / ".copying-machine").touch()
    copy_checkpoints(before(tmp_path), str(target))
    assert [path.name for path in target.iterdir()] == [".copying-machine"]


def test_what_it_has_by_itself_is_left_alone(tmp_path: Path) -> None:
    pattern, target = before(tmp_path), tmp_path / "next"
    target.mkdir()
    (target / "mine").touch()
    copy_checkpoints(pattern, str(target))
    assert [path.name for path in target.iterdir()] == ["mine"]


def test_where_nothing_was_left_nothing_is_made(tmp_path: Path) -> None:
    copy_checkpoints(str(tmp_path / "*-none"), str(tmp_path / "next"))
    assert not list(tmp_path.iterdir())


def test_worker_0_copies_and_the_others_do_not(
    worker: Callable[..., Worker], tmp_path: Path
) -> None:
    pattern = before(tmp_path)
    for number, names in ((0, ["deep"]), (1, [])):
        target = tmp_path / f"next-{number}"
        plan = worker(
            "pass", checkpoints_from=pattern, checkpoint_dir=str(target), worker=number, n_workers=2
        ).plan
        prepare(plan, Directory(str(tmp_path / f"worker-{number}")))
        assert [path.name for path in target.iterdir()] == names


def test_a_copy_that_can_not_be_made_is_said_before_any_rank_starts(
    worker: Callable[..., Worker], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    plan = worker(
        "pass", checkpoints_from=before(tmp_path), checkpoint_dir=str(tmp_path / "file" / "next")
    ).plan
    with pytest.raises(CannotStart, match="the checkpoints of the job before can't be copied"):
        prepare(plan, Directory(str(tmp_path / "worker")))
