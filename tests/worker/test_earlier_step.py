"""A job that starts from an earlier step of the checkpoints that were copied for it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from client_lib.worker.earlier_step import NoSuchStep, go_back, go_back_before
from tests.checkpoints.kit import save
from tests.worker.conftest import Worker

Make = Callable[..., Worker]
HIDDEN = ".later-than-400-job"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Checkpoints of three steps, a last one and a best one, and a link."""
    for number, name in enumerate(
        ["step-300.pt", "best.pt", "step-400.pt", "step-500.pt", "last.pt"]
    ):
        save(tmp_path / name, at=1000.0 + number)
    (tmp_path / "newest.pt").symlink_to("step-500.pt")
    (tmp_path / "notes.txt").touch()
    return tmp_path


def test_what_is_later_is_hidden_and_links_name_the_step(folder: Path) -> None:
    go_back(str(folder), 400, "job")
    assert sorted(os.listdir(folder)) == [
        HIDDEN,
        "best.pt",
        "newest.pt",
        "notes.txt",
        "step-300.pt",
        "step-400.pt",
    ]
    assert sorted(os.listdir(folder / HIDDEN)) == ["last.pt", "step-500.pt"]
    assert os.readlink(folder / "newest.pt") == "step-400.pt"


def test_it_happens_once(folder: Path) -> None:
    go_back(str(folder), 400, "job")
    save(folder / "step-410.pt", at=time.time())
    go_back(str(folder), 400, "job")
    assert (folder / "step-410.pt").exists()


def test_a_launcher_that_was_killed_meanwhile_is_continued(folder: Path) -> None:
    (folder / f"{HIDDEN}.moving").mkdir()
    (folder / "step-500.pt").rename(folder / f"{HIDDEN}.moving" / "step-500.pt")
    go_back(str(folder), 400, "job")
    assert sorted(os.listdir(folder / HIDDEN)) == ["last.pt", "step-500.pt"]


def test_the_steps_that_are_there_are_listed(folder: Path) -> None:
    with pytest.raises(NoSuchStep, match="step 450; there are: 300, 400, 500"):
        go_back(str(folder), 450, "job")
    with pytest.raises(NoSuchStep, match="there are: none"):
        go_back(str(folder / "missing"), 450, "job")


def test_deepspeed_and_megatron_read_the_step(tmp_path: Path) -> None:
    for step in (400, 500):
        save(tmp_path / f"global_step{step}" / "mp_rank_00_model_states.pt", at=float(step))
        (tmp_path / "megatron").mkdir(exist_ok=True)
        save(tmp_path / "megatron" / f"iter_{step:07}" / "common.pt", at=float(step))
    (tmp_path / "latest").write_text("global_step500")
    (tmp_path / "megatron" / "latest_checkpointed_iteration.txt").write_text("500")
    go_back(str(tmp_path), 400, "job")
    assert (tmp_path / "latest").read_text() == "global_step400"
    assert (tmp_path / "megatron" / "latest_checkpointed_iteration.txt").read_text() == "400"


def test_the_model_of_a_trainer_in_the_folder_itself_stays(tmp_path: Path) -> None:
    for step in (400, 500):
        folder = tmp_path / f"checkpoint-{step}"
        save(folder / "pytorch_model.bin", at=float(step))
        (folder / "config.json").write_text("{}")
        (folder / "trainer_state.json").write_text(f'{{"global_step": {step}}}')
        save(folder / "training_args.bin", at=float(step))
        os.utime(folder / "trainer_state.json", (step, step))
    save(tmp_path / "pytorch_model.bin", at=2e9)
    (tmp_path / "config.json").write_text("{}")
    go_back(str(tmp_path), 400, "job")
    assert {"checkpoint-400", "pytorch_model.bin", "config.json"} <= set(os.listdir(tmp_path))
    assert "checkpoint-500" in os.listdir(tmp_path / HIDDEN)


def model(folder: Path, at: float) -> None:
    save(folder / "pytorch_model.bin", at=at)
    (folder / "config.json").write_text("{}")
    os.utime(folder / "config.json", (at, at))


def test_a_folder_that_holds_a_checkpoint_that_stays_is_not_moved(tmp_path: Path) -> None:
    for step in (400, 500):
        model(tmp_path / "model-900" / f"checkpoint-{step}", at=float(step))
    model(tmp_path / "model-900", at=900.0)
    go_back(str(tmp_path), 400, "job")
    assert {"checkpoint-400", "pytorch_model.bin"} <= set(os.listdir(tmp_path / "model-900"))
    assert os.listdir(tmp_path / HIDDEN / "model-900") == ["checkpoint-500"]


def test_a_folder_is_moved_with_the_checkpoints_in_it(tmp_path: Path) -> None:
    model(tmp_path / "model-400", at=400.0)
    model(tmp_path / "model-900" / "checkpoint-500", at=500.0)
    model(tmp_path / "model-900", at=900.0)
    go_back(str(tmp_path), 400, "job")
    assert sorted(os.listdir(tmp_path)) == [HIDDEN, "model-400"]
    assert "checkpoint-500" in os.listdir(tmp_path / HIDDEN / "model-900")


# --- before an alarm


def test_what_was_written_after_the_alarm_is_moved_aside(folder: Path) -> None:
    """By the step, and by the time where a checkpoint has no step."""
    save(folder / "step-200.pt", at=2000.0)  # written again later
    said = go_back_before(str(folder), 400, 1001.5, "job", 2)
    hidden = folder / ".after-alarm-2-job"
    assert said == (
        f"checkpoints after the alarm were moved to {hidden}: 4; "
        "the newest one left is step-300.pt of step 300"
    )
    assert sorted(os.listdir(hidden)) == [
        "last.pt",
        "step-200.pt",
        "step-400.pt",
        "step-500.pt",
    ]
    assert sorted(os.listdir(folder)) == [
        ".after-alarm-2-job",
        "best.pt",
        "newest.pt",
        "notes.txt",
        "step-300.pt",
    ]
    assert os.readlink(folder / "newest.pt") == "step-300.pt"


def test_without_a_known_step_the_time_decides(folder: Path) -> None:
    go_back_before(str(folder), None, 1002.0, "job", 2)
    assert "step-400.pt" in os.listdir(folder)
    assert sorted(os.listdir(folder / ".after-alarm-2-job")) == ["last.pt", "step-500.pt"]


def test_if_none_is_left_the_attempt_starts_anew(folder: Path) -> None:
    said = go_back_before(str(folder), 0, 0.0, "job", 2)
    assert said
    assert said.endswith(": 5; none is left")
    assert sorted(os.listdir(folder)) == [".after-alarm-2-job", "notes.txt"]


def test_an_attempt_goes_back_once_and_the_next_one_again(folder: Path) -> None:
    assert go_back_before(str(folder), 500, 1e9, "job", 2)
    save(folder / "step-600.pt", at=time.time())
    assert go_back_before(str(folder), 500, 1e9, "job", 2) is None
    assert (folder / "step-600.pt").exists()
    assert go_back_before(str(folder), 600, 1e10, "job", 3)
    assert not (folder / "step-600.pt").exists()


def test_megatron_reads_the_step_before_the_alarm(tmp_path: Path) -> None:
    for step in (400, 500):
        save(tmp_path / "m" / f"iter_{step:07}" / "common.pt", at=float(step))
    (tmp_path / "m" / "latest_checkpointed_iteration.txt").write_text("500")
    go_back_before(str(tmp_path), 500, 1e9, "job", 2)
    assert (tmp_path / "m" / "latest_checkpointed_iteration.txt").read_text() == "400"


def test_a_folder_that_is_not_there_is_none_to_move(tmp_path: Path) -> None:
    said = go_back_before(str(tmp_path / "missing"), 1, 0.0, "job", 2)
    assert said
    assert said.endswith(": 0; none is left")


@pytest.mark.process
def test_a_launcher_goes_back_in_its_first_attempt_alone(worker: Make) -> None:
    lists = "import os; print(sorted(os.listdir(os.environ['CLIENT_LIB_CHECKPOINT_DIR'])))"
    for attempt, shown in ((1, ["step-300.pt"]), (2, ["step-300.pt", "step-400.pt"])):
        one = worker(lists, from_step=300, attempt=attempt)
        for step in (300, 400):
            save(Path(one.plan.checkpoint_dir) / f"step-{step}.pt", at=float(step))
        one.run()
        (line,) = one.lines()
        assert [name for name in eval(line) if not name.startswith(".")] == shown


@pytest.mark.process
def test_a_step_that_is_not_there_ends_the_start(worker: Make) -> None:
    one = worker("print('never')", from_step=300)
    report = one.start().report()
    assert report["reason"] == "StartFailed"
    assert report["message"] == (
        "from_step=300: there is no complete checkpoint of step 300; there are: none"
    )
