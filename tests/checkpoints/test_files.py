"""Checkpoints of one file, written by the real libraries."""

import zipfile
from pathlib import Path

import pytest
import safetensors.torch
import torch

from tests.checkpoints.kit import cut, found, only

STATE = {"model": {"a": torch.arange(1000.0), "b": torch.ones(3)}, "step": 5}


@pytest.mark.parametrize("suffix", ["pt", "pth", "bin", "ckpt"])
def test_a_torch_file_is_complete(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"step=5.{suffix}"
    torch.save(STATE, path)
    size, modified = path.stat().st_size, path.stat().st_mtime
    assert only(tmp_path) == (path.name, "torch", 5, size, modified, "", False, ())


def test_a_torch_file_that_is_cut_off_says_so(tmp_path: Path) -> None:
    torch.save(STATE, tmp_path / "a.pt")
    cut(tmp_path / "a.pt", 3000)
    checkpoint = only(tmp_path)
    assert checkpoint.missing == "cut off: 3000 bytes, the zip directory is missing"
    assert checkpoint.is_proof


def test_what_lies_behind_an_archive_does_not_matter_where_torch_ignores_it(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save(STATE, path)
    with path.open("ab") as file:
        file.write(b"x" * 60_000)
    torch.load(path)
    assert not only(tmp_path).missing
    with path.open("ab") as file:
        file.write(b"x" * 10_000)
    with pytest.raises(RuntimeError):
        torch.load(path)
    assert only(tmp_path).is_proof


def test_other_zip_archives_are_no_checkpoints(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        archive.writestr("data.txt", "x")
    assert found(tmp_path) == {}


@pytest.mark.parametrize(
    ("content", "missing"),
    [
        (b"", "it is empty"),
        (b"P", "cut off: 1 bytes"),
        (b"\x80", "cut off: 1 bytes"),
        (b"\0" * 10_000, "not written: 10000 bytes, zeros at both ends"),
    ],
)
def test_a_file_that_was_never_written_is_damaged(
    tmp_path: Path, content: bytes, missing: str
) -> None:
    (tmp_path / "a.pt").write_bytes(content)
    checkpoint = only(tmp_path)
    assert (checkpoint.missing, checkpoint.is_proof) == (missing, True)


def test_a_safetensors_file_is_complete_or_says_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file({"a": torch.ones(1024), "b": torch.ones(10)}, path)
    whole = only(tmp_path)
    assert (whole.format, whole.missing) == ("safetensors", "")
    cut(path, path.stat().st_size - 100)
    checkpoint = only(tmp_path)
    assert checkpoint.missing == "the header says 4136 bytes of tensors, the file has 4036"
    assert checkpoint.is_proof


def test_a_safetensors_file_with_bytes_behind_it_is_refused_as_the_library_does(
    tmp_path: Path,
) -> None:
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file({"a": torch.ones(10)}, path)
    with path.open("ab") as file:
        file.write(b"x")
    with pytest.raises(safetensors.SafetensorError):
        safetensors.torch.load_file(path)
    assert only(tmp_path)[5:7] == (
        "the header says 40 bytes of tensors, the file has 41",
        True,
    )
