"""Saves of a run, as they come."""

import os
from pathlib import Path

from client_lib.drill.saves import Saves, cut, is_renamed, moments


def whole(path: Path, at: float) -> None:
    """A whole checkpoint without tensors, last changed at this time."""
    path.write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    os.utime(path, (at, at))


def test_a_save_counts_when_it_is_whole(tmp_path: Path) -> None:
    whole(tmp_path / "earlier.safetensors", 1.0)
    saves = Saves(str(tmp_path))
    assert not saves.found()
    path = tmp_path / "last.safetensors"
    path.write_bytes(b"\x10\0\0\0\0\0\0\0{")
    os.utime(path, (5.0, 5.0))
    assert saves.look()
    assert not saves.times()
    whole(path, 5.0)
    assert saves.look()
    assert saves.times() == [5.0]
    assert not saves.look()
    assert [each.path for each in saves.found()] == ["last.safetensors"]
    whole(path, 9.0)
    saves.look()
    assert saves.times() == [5.0, 9.0]


def test_the_folders_of_checkpoints_are_known(tmp_path: Path) -> None:
    saves = Saves(str(tmp_path))
    assert saves.folders() == [str(tmp_path)]
    out = tmp_path / "code" / "out"
    out.mkdir(parents=True)
    whole(out / "a.safetensors", 1.0)
    whole(out / "b.safetensors", 2.0)
    assert saves.look()
    assert saves.folders() == [str(out)]


def test_files_of_one_save_are_one() -> None:
    assert moments([3.0, 1.0, 1.03, 1.06]) == [1.06, 3.0]


def test_a_rename_of_the_file_or_within_the_folder_makes_a_save_atomic() -> None:
    assert is_renamed("/a/last.pt", {"/a/last.pt"})
    assert is_renamed("/a/step-3", {"/a/step-3/.metadata"})
    assert not is_renamed("/a/step-3", {"/a/step-30", "/a"})


def test_a_cut_takes_half_of_the_largest_file(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(bytes(10))
    (tmp_path / "large").write_bytes(bytes(100))
    cut(str(tmp_path))
    assert {path.name: path.stat().st_size for path in tmp_path.iterdir()} == {
        "small": 10,
        "large": 50,
    }
