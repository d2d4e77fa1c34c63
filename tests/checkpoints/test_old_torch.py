"""Files of torch.save before 1.6."""

import random
from pathlib import Path

import pytest
import torch

from tests.checkpoints.kit import cut, only

MODEL = torch.nn.Sequential(torch.nn.Linear(30, 40), torch.nn.BatchNorm1d(40)).state_dict()
# as Adam has it; torch.optim itself loads a compiler, which takes seconds
OPTIMIZER = {
    "state": {0: {"step": torch.tensor(3.0), "exp_avg": torch.ones(40, 30)}},
    "param_groups": [{"lr": 0.001, "betas": (0.9, 0.999), "params": [0]}],
}
STATES = {
    "numbers alone": {"step": 3, "lr": 0.1, "names": ["a"] * 300},
    "model and optimizer": {"model": MODEL, "optimizer": OPTIMIZER},
    "more than 64 KiB of pickles": {f"w{n}": torch.ones(1) for n in range(1500)},
    "views of a storage": dict(enumerate(torch.arange(1000.0).view(10, 100).unbind())),
    "types": {
        str(kind): torch.ones(7, dtype=kind)
        for kind in (
            torch.bfloat16,
            torch.bool,
            torch.complex64,
            torch.complex128,
            torch.float16,
            torch.float64,
            torch.int8,
            torch.int16,
            torch.int32,
            torch.uint8,
        )
    },
}


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("state", STATES)
def test_object_and_keys_tell_where_an_old_file_ends(
    tmp_path: Path, state: str, protocol: int
) -> None:
    path = tmp_path / "a.pt"
    torch.save(STATES[state], path, pickle_protocol=protocol, _use_new_zipfile_serialization=False)
    whole = only(tmp_path)
    assert (whole.format, whole.missing) == ("torch (before 1.6)", "")
    size = path.stat().st_size
    for kept in (size - 1, *random.Random(7).sample(range(30, size), 8)):
        content = path.read_bytes()
        cut(path, kept)
        checkpoint = only(tmp_path)
        assert checkpoint.missing.startswith(f"cut off: {kept} bytes"), kept
        assert checkpoint.is_proof
        path.write_bytes(content)


def test_an_old_file_with_an_unknown_kind_of_storage_is_in_doubt(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save({"a": torch.ones(3)}, path, _use_new_zipfile_serialization=False)
    path.write_bytes(path.read_bytes().replace(b"FloatStorage", b"FlootStorage"))
    checkpoint = only(tmp_path)
    assert checkpoint.missing.endswith("its end can't be judged")
    assert not checkpoint.is_proof
