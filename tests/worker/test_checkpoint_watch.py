"""A launcher tells which checkpoints its job has, and moves a damaged newest one aside before the
ranks start.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from client_lib.launcher_protocol.checkpoint_lines import SeenCheckpoint
from client_lib.worker.checkpoint_removal import remove
from client_lib.worker.damaged_checkpoints import ASIDE
from tests.checkpoints.kit import WEIGHTS, save
from tests.kit.waiting import until
from tests.worker.conftest import Worker

pytestmark = pytest.mark.process
Make = Callable[..., Worker]
LISTS = """
import os
print(sorted(os.listdir(os.environ["CLIENT_LIB_CHECKPOINT_DIR"])))
"""


def told(worker: Worker) -> dict[str, SeenCheckpoint]:
    """The checkpoints that the log tells of, by their names."""
    found: dict[str, SeenCheckpoint] = {}
    for line in worker.lines("metrics", rank=None):
        value = json.loads(line)
        if isinstance(value, list) and value[1] == "checkpoint" and value[2]:
            seen = value[2]
            name = os.path.basename(seen[0])
            if len(seen) == 1:
                del found[name]
            else:
                found[name] = SeenCheckpoint(*seen)
    return found


def checkpoints_of(worker: Worker) -> Path:
    folder = Path(worker.plan.checkpoint_dir)
    folder.mkdir()
    return folder


def test_what_a_short_job_saves_is_told_at_its_end(worker: Make) -> None:
    one = worker(
        """
        import os, torch
        folder = os.environ["CLIENT_LIB_CHECKPOINT_DIR"]
        torch.save({"weight": torch.zeros(2000)}, folder + "/step-3.pt")
        torch.save({"weight": torch.zeros(2000)}, folder + "/step-4.pt")
        os.truncate(folder + "/step-4.pt", 5000)
        """
    )
    before = checkpoints_of(one) / "model.pt"
    save(before, age_s=1000)
    assert one.run()["exit_code"] == 0
    found = told(one)
    assert {name: (seen.step, seen.state, seen.own) for name, seen in found.items()} == {
        "model.pt": (None, "complete", False),
        "step-3.pt": (3, "complete", True),
        "step-4.pt": (4, "damaged", True),
    }
    assert "5000 bytes" in found["step-4.pt"].missing
    assert found["step-3.pt"].path == f"{before.parent}/step-3.pt"


def test_a_running_job_tells_what_is_written_and_removed(worker: Make) -> None:
    one = worker(
        """
        import os, sys, time, torch
        folder = os.environ["CLIENT_LIB_CHECKPOINT_DIR"]
        torch.save({"weight": torch.zeros(2000)}, folder + "/step-1.pt")
        torch.save({"weight": torch.zeros(2000)}, "in-place-7.pt")
        open(folder + "/step-2.pt", "wb").write(open(folder + "/step-1.pt", "rb").read()[:3000])
        while "go" not in os.listdir():
            time.sleep(0.05)
        os.remove(folder + "/step-1.pt")
        """
    )
    one.start().go()
    one.waits_for("in-place-7.pt")
    one.waits_for("step-2.pt")
    found = told(one)
    assert {name: seen.state for name, seen in found.items()} == {
        "step-1.pt": "complete",
        "step-2.pt": "writing",
        "in-place-7.pt": "complete",
    }
    (one.folder / "go").touch()
    one.report()
    assert told(one)["step-2.pt"].state == "damaged"
    assert "step-1.pt" not in told(one)


@pytest.mark.parametrize("fields", [{"observe": False}, {"worker": 1, "n_workers": 2}])
def test_a_job_that_is_not_observed_and_other_workers_tell_nothing(
    worker: Make, fields: dict[str, object]
) -> None:
    one = worker("print(1)", **fields)
    save(checkpoints_of(one) / "model.pt", age_s=1000)
    one.run()
    assert told(one) == {}


def test_a_damaged_newest_checkpoint_is_moved_aside(worker: Make) -> None:
    one = worker(LISTS, moves_damaged=True)
    folder = checkpoints_of(one)
    save(folder / "step-300.pt", age_s=60)
    save(folder / "step-400.pt", age_s=30, cut_to=5000)
    report = one.run()
    assert one.lines() == ["['.damaged', 'step-300.pt']"]
    (note,) = report["notes"]
    assert f"{folder}/step-400.pt is damaged: cut off: 5000 bytes" in note
    assert "the one before it is step-300.pt of step 300" in note
    undo = shlex.split(note.split("`")[1])
    subprocess.run(undo, check=True)
    assert (folder / "step-400.pt").stat().st_size == 5000


def test_a_name_that_is_no_text_is_told_with_its_bytes(worker: Make) -> None:
    one = worker(LISTS, moves_damaged=True)
    folder = checkpoints_of(one)
    save(folder / "step-3.pt", age_s=60)
    named = Path(os.fsdecode(os.fsencode(folder) + b"/step-4-\xff\n.pt"))
    save(named, age_s=30, cut_to=5000)
    (note,) = one.run()["notes"]
    assert "step-4-\\xff\n.pt is damaged" in note
    assert not named.exists()
    assert (folder / ASIDE / named.name).exists()
    save(named, age_s=30)
    again = worker("", checkpoint_dir=str(folder))
    again.run()
    assert told(again)["step-4-\\xff\n.pt"].state == "complete"


def test_several_damaged_ones_are_moved_and_none_is_overwritten(worker: Make) -> None:
    one = worker(LISTS, moves_damaged=True)
    folder = checkpoints_of(one)
    (folder / ASIDE).mkdir()
    (folder / ASIDE / "step-2.pt").write_text("of an earlier attempt")
    for step in (1, 2):
        save(folder / f"step-{step}.pt", age_s=60 - step, cut_to=5000)
    assert len(one.run()["notes"]) == 2
    assert sorted(os.listdir(folder / ASIDE)) == ["step-1.pt", "step-2.pt", "step-2.pt.2"]
    assert (folder / ASIDE / "step-2.pt").read_text() == "of an earlier attempt"


def test_an_older_damaged_one_stays(worker: Make) -> None:
    one = worker(LISTS, moves_damaged=True)
    folder = checkpoints_of(one)
    save(folder / "step-300.pt", age_s=60, cut_to=5000)
    save(folder / "step-400.pt", age_s=30)
    assert "notes" not in one.run()
    assert one.lines() == ["['step-300.pt', 'step-400.pt']"]


def test_in_a_folder_of_the_user_it_is_only_told(worker: Make) -> None:
    one = worker(LISTS)
    folder = checkpoints_of(one)
    save(folder / "last.pt", age_s=30, cut_to=5000)
    (note,) = one.run()["notes"]
    assert one.lines() == ["['last.pt']"]
    assert f"mv {folder}/last.pt {folder}/{ASIDE}/last.pt" in note


def test_what_a_pointer_names_stays(worker: Make) -> None:
    one = worker(LISTS, moves_damaged=True)
    folder = checkpoints_of(one)
    save(folder / "step-400.pt", age_s=30, cut_to=5000)
    (folder / "last.pt").symlink_to("step-400.pt")
    (note,) = one.run()["notes"]
    assert "last.pt names it" in note
    assert one.lines() == ["['last.pt', 'step-400.pt']"]


def test_what_a_process_has_open_stays(worker: Make) -> None:
    one = worker(LISTS, moves_damaged=True)
    path = checkpoints_of(one) / "step-400.pt"
    save(path, age_s=30, cut_to=5000)
    with path.open("rb"):
        (note,) = one.run()["notes"]
    assert "has a file of the folder open" in note
    assert path.exists()


def test_a_folder_that_is_a_checkpoint_as_a_whole_stays(worker: Make) -> None:
    one = worker(LISTS, moves_damaged=True)
    folder = checkpoints_of(one)
    (folder / "config.json").write_text("{}")
    save(folder / "pytorch_model.bin", age_s=30, cut_to=5000)
    (note,) = one.run()["notes"]
    assert "it is the whole folder" in note
    assert one.lines() == ["['config.json', 'pytorch_model.bin']"]


def test_a_file_that_grows_stays(worker: Make) -> None:
    one = worker(LISTS, moves_damaged=True)
    path = checkpoints_of(one) / "step-400.pt"
    save(path, age_s=0, cut_to=5000)
    one.start()
    whole = path.with_name("whole")
    torch.save(WEIGHTS, whole)
    whole.replace(path)  # between the two looks
    assert "notes" not in one.go().report()
    assert one.lines() == ["['step-400.pt']"]


def test_a_stop_while_it_looks_ends_the_worker(worker: Make) -> None:
    one = worker(LISTS, moves_damaged=True)
    save(checkpoints_of(one) / "step-400.pt", age_s=0, cut_to=5000)
    one.start()
    one.stop(1.0)
    assert one.report()["reason"] == "Cancelled"


SAVES_FIVE = """
import os, torch
folder = os.environ["CLIENT_LIB_CHECKPOINT_DIR"]
for step in range(1, 6):
    torch.save({"weight": torch.zeros(2000)}, f"{folder}/step-{step}.pt")
torch.save({"weight": torch.zeros(2000)}, f"{folder}/best.pt")
"""


@pytest.mark.parametrize("observe", [True, False])
def test_the_last_checkpoints_are_kept(worker: Make, observe: bool) -> None:
    one = worker(SAVES_FIVE, keep_checkpoints=2, observe=observe)
    folder = checkpoints_of(one)
    (folder / "step-0").mkdir()  # no checkpoint
    (folder / ".removing-checkpoint-0" / "deep").mkdir(
        parents=True
    )  # of a launcher that was killed
    one.run()
    assert sorted(os.listdir(folder)) == ["best.pt", "step-0", "step-4.pt", "step-5.pt"]
    assert set(told(one)) == ({"best.pt", "step-4.pt", "step-5.pt"} if observe else set())


def test_early_checkpoints_go_while_the_job_runs(worker: Make) -> None:
    one = worker(
        SAVES_FIVE
        + """
import time
while "go" not in os.listdir():
    time.sleep(0.05)
""",
        keep_checkpoints=1,
    )
    one.start().go()
    until(lambda: not os.path.exists(f"{one.plan.checkpoint_dir}/step-4.pt"), "it is removed")
    one.waits_for("step-5.pt")
    (one.folder / "go").touch()
    assert one.report()["exit_code"] == 0


def test_a_folder_is_removed_as_a_whole_and_links_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").touch()
    folder = tmp_path / "checkpoint-1"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "model.pt").touch()
    (folder / "link").symlink_to(outside)
    assert gone(folder)
    assert os.listdir(tmp_path) == ["outside"]
    assert os.listdir(outside) == ["precious"]


def test_a_removal_that_was_interrupted_is_finished_by_the_next_one(tmp_path: Path) -> None:
    (tmp_path / ".removing-step-1.pt" / "half").mkdir(parents=True)
    assert gone(save(tmp_path / "step-1.pt"))
    assert os.listdir(tmp_path) == []


def test_a_checkpoint_that_can_not_be_removed_is_still_told(worker: Make) -> None:
    one = worker(SAVES_FIVE, keep_checkpoints=1)
    folder = checkpoints_of(one)
    long = f"step-1-{'x' * 240}.pt"  # no name with something before it is short enough
    path = save(folder / long)
    assert not gone(path)
    one.run()
    assert sorted(os.listdir(folder)) == ["best.pt", long, "step-5.pt"]
    assert set(told(one)) == {"best.pt", long, "step-5.pt"}


def gone(path: Path) -> bool:
    """Remove a checkpoint; False: it stays."""
    removing = remove(str(path))
    while True:
        try:
            next(removing)
        except StopIteration as end:
            return bool(end.value)


SAVES_AND_EVALUATES = """
import os, time, torch
folder = os.environ["CLIENT_LIB_CHECKPOINT_DIR"]
for step, acc in {values}:
    if acc is not None:
        print(f"step {{step}} eval/acc={{acc}}", flush=True)
        time.sleep(0.3)  # a value counts for what is saved later
    for name in ("model", "optimizer"):
        torch.save({{"weight": torch.zeros(2000)}}, f"{{folder}}/{{name}}-{{step}}.pt")
torch.save({{"weight": torch.zeros(2000)}}, f"{{folder}}/last.pt")
"""


def evaluates(*values: tuple[int, float | None]) -> str:
    """A script that saves at steps, after a metric is printed."""
    return SAVES_AND_EVALUATES.format(values=values)


def test_the_best_checkpoint_stays_with_all_files_of_its_step(worker: Make) -> None:
    one = worker(
        evaluates((1, 0.5), (2, 0.9), (3, 0.7), (4, 0.8)),
        keep_checkpoints=1,
        keep_best="max:eval/acc",
    )
    folder = checkpoints_of(one)
    assert "notes" not in one.run()
    kept = ["last.pt", "model-2.pt", "model-4.pt", "optimizer-2.pt", "optimizer-4.pt"]
    assert [name for name in sorted(os.listdir(folder)) if name[0] != "."] == kept


def test_a_later_attempt_knows_the_best_one_of_an_earlier_one(worker: Make) -> None:
    rule = {"keep_checkpoints": 1, "keep_best": "min:eval/acc"}
    first = worker(evaluates((1, 0.5), (2, 0.1), (3, 0.7)), **rule)
    folder = checkpoints_of(first)
    first.run()
    again = worker(evaluates((4, 0.3), (5, 0.4)), attempt=2, checkpoint_dir=str(folder), **rule)
    again.run()
    assert {"model-2.pt", "model-5.pt"} == {
        name for name in os.listdir(folder) if name.startswith("model")
    }


def test_a_checkpoint_whose_value_is_not_known_stays(worker: Make) -> None:
    one = worker(evaluates((1, 0.5), (2, 0.9)), keep_checkpoints=1, keep_best="max:eval/acc")
    folder = checkpoints_of(one)
    save(folder / "model-0.pt", age_s=1000)
    one.run()
    assert {"model-0.pt", "model-2.pt"} == {
        name for name in os.listdir(folder) if name.startswith("model")
    }


def test_nothing_goes_while_the_metric_has_no_value(worker: Make) -> None:
    one = worker(evaluates((1, 0.5), (2, 0.9)), keep_checkpoints=1, keep_best="max:eval_acc")
    folder = checkpoints_of(one)
    (note,) = one.run()["notes"]
    assert "keep_best: eval_acc has no value so far, so no checkpoint was removed" in note
    assert {"model-1.pt", "model-2.pt"} <= set(os.listdir(folder))
