"""Checkpoints as the real libraries write and load them: one save and one load per format."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as load_distributed
from torch.distributed.checkpoint.state_dict_saver import save as save_distributed

State = dict[str, torch.Tensor]
RANKS = 3


def state(megabytes: int) -> State:
    """Tensors of different sizes."""
    generator = torch.Generator().manual_seed(megabytes)
    sizes = [megabytes * 100_000, megabytes * 100_000, megabytes * 50_000, 10, 1]
    return {f"w{n}": torch.randn(size, generator=generator) for n, size in enumerate(sizes)}


class Format(NamedTuple):
    """A way to write a checkpoint to a path, and to load what was written."""

    name: str
    save: Callable[[State, Path], Any]
    load: Callable[[Path], State]


def _save_old(state: State, path: Path) -> None:
    torch.save(state, path, _use_new_zipfile_serialization=False)


def _save_safetensors(state: State, path: Path) -> None:
    """Write the file in its place, as safetensors before 0.8: now a temporary one is renamed."""
    content = io.BytesIO(safetensors.torch.save(state))
    with path.open("wb") as file:
        while part := content.read(2**16):
            file.write(part)


def _save_distributed(state: State, path: Path) -> None:
    save_distributed(state, checkpoint_id=path, no_dist=True)


def _load_distributed(path: Path) -> State:
    metadata = FileSystemReader(path).read_metadata()
    loaded = {
        name: torch.zeros(stored.size)
        for name, stored in metadata.state_dict_metadata.items()
        if isinstance(stored, TensorStorageMetadata)
    }
    load_distributed(loaded, checkpoint_id=path, no_dist=True)
    return loaded


def _save_trainer(state: State, path: Path) -> None:
    """The files of transformers' Trainer in its order (`Trainer._save_checkpoint`)."""
    path.mkdir()
    (path / "config.json").write_text('{"model_type": "x"}')
    safetensors.torch.save_file(state, path / "model.safetensors")
    torch.save({"learning_rate": 0.1}, path / "training_args.bin")
    torch.save({"state": state}, path / "optimizer.pt")
    torch.save({"last_epoch": 3}, path / "scheduler.pt")
    torch.save({"cpu": torch.get_rng_state()}, path / "rng_state.pth")
    trainer = {"epoch": 1.0, "global_step": 2, "log_history": [{"loss": 0.5}] * 50}
    (path / "trainer_state.json").write_text(json.dumps(trainer, indent=2, sort_keys=True) + "\n")


def _load_trainer(path: Path) -> State:
    for name in ("training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth"):
        torch.load(path / name)
    assert json.loads((path / "trainer_state.json").read_text())["global_step"] == 2
    return safetensors.torch.load_file(path / "model.safetensors")


def _save_deepspeed(state: State, path: Path) -> None:
    """The files of DeepSpeed 0.16 with ZeRO 1 in its order (`DeepSpeedEngine.save_checkpoint`)."""
    path.mkdir()
    model = {"module": state, "dp_world_size": RANKS, "mp_world_size": 1}
    torch.save(model, path / "mp_rank_00_model_states.pt")
    for rank in range(RANKS):
        torch.save({"state": state}, path / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    (path.parent / "latest").write_text(path.name)


def _load_deepspeed(path: Path) -> State:
    loaded = torch.load(path / "mp_rank_00_model_states.pt")
    for rank in range(RANKS):
        torch.load(path / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    module: State = loaded["module"]
    return module


FORMATS = {
    each.name: each
    for each in (
        Format("step_2.pt", torch.save, torch.load),
        Format("step_2.ckpt", _save_old, torch.load),
        Format("step_2.safetensors", _save_safetensors, safetensors.torch.load_file),
        Format("step_2", _save_distributed, _load_distributed),
        Format("checkpoint-2", _save_trainer, _load_trainer),
        Format("global_step2", _save_deepspeed, _load_deepspeed),
    )
}
"""By the name that a checkpoint of step 2 has."""


def loads(format: Format, path: Path, wanted: State) -> bool:
    """Say whether the library loads what was written, unchanged."""
    try:
        loaded = format.load(path)
    # libraries raise all kinds of errors for damaged files
    except (Exception, CheckpointException):  # noqa: BLE001
        return False
    return loaded.keys() == wanted.keys() and all(
        torch.equal(loaded[name], tensor) for name, tensor in wanted.items()
    )
