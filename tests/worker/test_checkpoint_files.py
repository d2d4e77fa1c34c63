"""The program that works on the files of checkpoints for the server, as a process."""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch

from client_lib.checkpoints import search
from client_lib.worker.checkpoint_values import FILE, CheckpointValues
from client_lib.worker.programs import checkpoints_command
from tests.checkpoints.kit import save

pytestmark = pytest.mark.process


def asked(verb: str, **request: object) -> bytes:
    done = subprocess.run(
        checkpoints_command(verb),
        input=json.dumps(request).encode(),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def pruned(
    folder: Path, keep: int, only: list[str] | None = None, best: str | None = None
) -> dict[str, Any]:
    answer = asked("prune", folder=str(folder), keep=keep, best=best, only=only)
    found: dict[str, Any] = json.loads(answer)
    return found


def names(answer: dict[str, Any]) -> list[str]:
    return [os.path.basename(path) for path, *_ in answer["goes"]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Checkpoints of four steps, one without a step, and files of the user."""
    for step in range(1, 5):
        save(tmp_path / "run" / f"step-{step}.pt", at=1000.0 + step)
    save(tmp_path / "run" / "best.pt")
    (tmp_path / "run" / "notes-1.txt").write_text("mine")
    return tmp_path / "run"


def test_early_ones_are_told_and_nothing_is_removed(folder: Path) -> None:
    before = sorted(os.listdir(folder))
    answer = pruned(folder, 2)
    size = (folder / "step-1.pt").stat().st_size
    assert answer == {
        "goes": [[f"{folder}/step-{step}.pt", step, size, 1000.0 + step] for step in (1, 2)],
        "stays": {},
    }
    assert sorted(os.listdir(folder)) == before


def test_those_that_are_named_go_if_they_are_early(folder: Path) -> None:
    named = [f"{folder}/{name}" for name in ("step-1.pt", "step-4.pt", "notes-1.txt", "best.pt")]
    assert names(pruned(folder, 2, named)) == ["step-1.pt"]
    assert sorted(os.listdir(folder)) == [
        "best.pt",
        "notes-1.txt",
        "step-2.pt",
        "step-3.pt",
        "step-4.pt",
    ]


def test_what_a_process_has_open_stays(folder: Path) -> None:
    path = f"{folder}/step-1.pt"
    with open(path, "rb"):
        told = pruned(folder, 2)
        removed = pruned(folder, 2, [path])
    assert told["stays"] == removed["stays"] == {path: "a process has it open"}
    assert names(told) == ["step-2.pt"]
    assert names(removed) == []
    assert os.path.exists(path)


def test_the_best_one_stays_by_the_values_that_a_launcher_left(folder: Path) -> None:
    values = {f"step-{step}.pt": [1000.0 + step, value] for step, value in ((1, 0.9), (2, 0.5))}
    (folder / FILE).write_text(json.dumps({"metric": "acc", "largest": True, "values": values}))
    answer = pruned(folder, 1)
    assert names(answer) == ["step-2.pt"]
    assert answer["stays"] == {
        f"{folder}/step-1.pt": "it is the best by acc",
        f"{folder}/step-3.pt": "the acc at its step is not known, so it may be the best",
    }


@pytest.mark.parametrize("content", ["", "{}", "[1", '{"metric": 1, "largest": 1, "values": [3]}'])
def test_a_damaged_file_of_values_is_none(folder: Path, content: str) -> None:
    (folder / FILE).write_text(content)
    assert names(pruned(folder, 2)) == ["step-1.pt", "step-2.pt"]


@pytest.mark.parametrize("content", ["", '{"metric": "loss", "largest": false, "values": {}}'])
def test_without_values_of_its_metric_each_may_be_the_best(folder: Path, content: str) -> None:
    (folder / FILE).write_text(content)
    answer = pruned(folder, 2, best="max:acc")
    assert names(answer) == []
    assert answer["stays"] == {
        f"{folder}/step-{step}.pt": "the acc at its step is not known, so it may be the best"
        for step in (1, 2)
    }


def test_values_that_could_not_be_written_are_written_later(folder: Path) -> None:
    found = [each for each in search(str(folder)) if each]
    values = CheckpointValues(str(folder), "max:acc", 0.0)
    (folder / FILE).mkdir()
    values.may_go([], found)
    (folder / FILE).rmdir()
    values.may_go([], found)
    assert (folder / FILE).is_file()


def test_the_paths_that_are_gone(folder: Path) -> None:
    (folder / "link.pt").symlink_to("nowhere")
    paths = [f"{folder}/{name}" for name in ("step-1.pt", "step-9.pt", "link.pt", "a\nb.pt")]
    assert json.loads(asked("gone", paths=paths)) == [paths[1], paths[3]]


def test_a_file_is_sent_as_an_archive(folder: Path) -> None:
    content = asked("send", path=f"{folder}/step-1.pt")
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        (entry,) = archive.getmembers()
        source = archive.extractfile(entry)
        assert source
        assert source.read() == (folder / "step-1.pt").read_bytes()
    assert (entry.name, entry.mtime) == ("step-1.pt", 1001.0)


def test_a_folder_is_sent_without_links_and_without_other_checkpoints(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    for name in ("pytorch_model.bin", "checkpoint-5/pytorch_model.bin"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "config.json").write_text("{}")
        torch.save({}, path)
    (folder / "secret").symlink_to("/etc/passwd")
    with tarfile.open(fileobj=io.BytesIO(asked("send", path=str(folder)))) as archive:
        assert sorted(archive.getnames()) == ["out/config.json", "out/pytorch_model.bin"]


def test_what_is_gone_or_no_file_is_an_error(folder: Path) -> None:
    os.mkfifo(folder / "pipe.pt")
    for name in ("step-9.pt", "pipe.pt"):
        request = json.dumps({"path": f"{folder}/{name}"})
        done = subprocess.run(
            checkpoints_command("send"), input=request, capture_output=True, text=True, check=False
        )
        assert done.returncode != 0
        assert f"{folder}/{name}" in done.stderr.splitlines()[-1]
