"""Two checkpoints, compared by a child process."""

import sys
from pathlib import Path
from typing import Any

import pytest

from client_lib.drill.judgement import Tensors
from client_lib.drill.runs import compare_tensors
from client_lib.errors import Conflict

pytestmark = pytest.mark.process


class Code:
    """A class that weights_only refuses."""


@pytest.fixture(scope="module")
def torch() -> Any:
    import torch

    return torch


def pair(torch: Any, folder: Path, one: Any, other: Any) -> Tensors:
    paths = folder / "one.pt", folder / "other.pt"
    for path, state in zip(paths, (one, other), strict=True):
        torch.save(state, path)
    return compare_tensors(sys.executable, *paths)


def test_tensors_are_compared_by_their_names(torch: Any, tmp_path: Path) -> None:
    one = {"model": {"w": torch.ones(3), "b": torch.zeros(2)}, "rng": torch.zeros(4), "step": 3}
    other = {"model": {"w": torch.ones(3) * 1.5, "b": torch.zeros(2)}, "rng": torch.ones(4)}
    same = pair(torch, tmp_path, one, one)
    assert (same.compared, same.differ) == (2, 0)
    found = pair(torch, tmp_path, one, other)
    assert (found.compared, found.differ) == (2, 1)
    assert list(found.largest) == [("one.pt.model.w", 0.5)]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_that_is_no_number_differs_from_any_other(
    torch: Any, tmp_path: Path, value: float
) -> None:
    lost = torch.tensor([1.0, value])
    assert pair(torch, tmp_path, lost, lost.clone()).differ == 0
    for one, other in ((lost, torch.ones(2)), (torch.ones(2), lost)):
        found = pair(torch, tmp_path, one, other)
        assert (found.compared, found.differ) == (1, 1)
        assert list(found.largest) == [("one.pt", float("inf"))]


def test_a_tensor_of_either_checkpoint_alone_differs(torch: Any, tmp_path: Path) -> None:
    whole = {"w": torch.ones(3), "m": torch.ones(3)}
    part = {"w": torch.ones(3)}
    for one, other in ((whole, part), (part, whole)):
        found = pair(torch, tmp_path, one, other)
        assert (found.compared, found.differ) == (2, 1)
        assert list(found.largest) == [("one.pt.m", float("inf"))]


def test_what_weights_only_refuses_is_compared_by_its_storages(torch: Any, tmp_path: Path) -> None:
    found = pair(torch, tmp_path, [Code(), torch.ones(3)], [Code(), torch.zeros(3)])
    assert (found.compared, found.differ) == (1, 1)
    assert "weights_only refuses it" in found.raw[0]
    assert pair(torch, tmp_path, Code(), Code()) == Tensors(0, 0, [], [])


def test_a_file_of_one_checkpoint_alone_differs(torch: Any, tmp_path: Path) -> None:
    folders = tmp_path / "one", tmp_path / "other"
    for folder in folders:
        folder.mkdir()
        torch.save({"w": torch.ones(3)}, folder / "model.pt")
    for name in ("optimizer.pt", "rng_state_0.pth", "events.log"):
        torch.save({"m": torch.ones(3)}, folders[0] / name)
    for found in (
        compare_tensors(sys.executable, *folders),
        compare_tensors(sys.executable, *reversed(folders)),
    ):
        assert (found.compared, found.differ) == (2, 1)
        assert list(found.largest) == [("optimizer.pt", float("inf"))]


def test_a_missing_checkpoint_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Conflict, match="can't be compared"):
        compare_tensors(sys.executable, tmp_path / "one.pt", tmp_path / "other.pt")
