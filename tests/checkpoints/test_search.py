"""What a caller of the search relies on."""

import os
import random
from pathlib import Path

import pytest
import torch

from client_lib.checkpoints import listing, search
from tests.checkpoints.formats import FORMATS, state
from tests.checkpoints.kit import found, only


def test_the_newest_comes_first_and_what_is_older_than_since_is_left_out(tmp_path: Path) -> None:
    for step in (3, 1, 2):
        path = tmp_path / f"step_{step}.pt"
        torch.save({}, path)
        os.utime(path, (step, step))
    assert [each.path for each in search(str(tmp_path)) if each] == [
        "step_3.pt",
        "step_2.pt",
        "step_1.pt",
    ]
    assert [each.step for each in search(str(tmp_path), since=2.0) if each] == [3, 2]


def test_the_bound_leaves_out_the_oldest_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # to make 20 000 files takes seconds
    monkeypatch.setattr(listing, "ENTRIES", 14)
    for number in (1, 4, 3, 2):
        folder = tmp_path / str(number)
        folder.mkdir()
        for step in range(5):
            torch.save({}, folder / f"step_{step}.pt")
        os.utime(folder, (number, number))
    assert {path[0] for path in found(tmp_path)} == {"4", "3"}


def test_what_is_known_and_unchanged_is_not_read_again(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save({}, path)
    known = found(tmp_path)
    status = path.stat()
    path.write_bytes(b"x" * status.st_size)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert list(filter(None, search(str(tmp_path), known=known))) == list(known.values())
    path.write_bytes(b"x" * (status.st_size + 1))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert not any(search(str(tmp_path), known=known)), "the size tells"


def test_a_pointer_to_a_known_checkpoint_is_up_to_date(tmp_path: Path) -> None:
    torch.save({}, tmp_path / "a.pt")
    known = found(tmp_path)
    (tmp_path / "last.pt").symlink_to("a.pt")
    (checkpoint,) = filter(None, search(str(tmp_path), known=known))
    assert checkpoint.pointers == ("last.pt",)


def test_a_file_without_a_step_has_that_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "step_9").mkdir()
    torch.save({}, tmp_path / "step_9" / "model.pt")
    assert only(tmp_path).step == 9


def test_the_searched_folder_may_be_a_checkpoint_itself(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint-2"
    FORMATS["checkpoint-2"].save(state(1), path)
    for folder in (str(path), f"{path}/", os.path.relpath(path)):
        (checkpoint,) = filter(None, search(folder))
        assert checkpoint[:3] == (".", "Hugging Face", 2)
        assert not checkpoint.missing
        assert checkpoint.size == sum(each.stat().st_size for each in path.iterdir())


def test_hidden_files_and_folders_are_left_out(tmp_path: Path) -> None:
    (tmp_path / ".cache").mkdir()
    torch.save({}, tmp_path / ".cache" / "a.pt")
    torch.save({}, tmp_path / ".tmp-a.pt")
    torch.save({}, tmp_path / "a.pt.tmp")
    assert found(tmp_path) == {}


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("name", FORMATS)
def test_bytes_changed_by_chance_raise_nothing(tmp_path: Path, name: str) -> None:
    chance = random.Random(name)
    folder = tmp_path / "of"
    folder.mkdir()
    FORMATS[name].save(state(1), folder / name)
    files = [path for path in folder.rglob("*") if path.is_file()]
    for _ in range(30):
        path = chance.choice(files)
        content = path.read_bytes()
        # both ends hold what is read
        at = chance.choice([chance.randrange(200), len(content) - 1 - chance.randrange(1000)])
        at = max(0, min(at, len(content) - 1))
        junk = chance.randbytes(chance.randrange(1, 60))
        path.write_bytes(content[:at] + junk + content[at + len(junk) :])
        list(search(str(tmp_path)))
        path.write_bytes(content)
