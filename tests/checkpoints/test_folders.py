"""Checkpoints that are folders."""

from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch.distributed.checkpoint.state_dict_saver import save

from tests.checkpoints.kit import cut, found, only


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_distributed_checkpoint_needs_its_metadata_and_all_shards(tmp_path: Path) -> None:
    folder = tmp_path / "step_40"
    save({"a": torch.zeros(1000), "n": 7}, checkpoint_id=folder, no_dist=True)
    whole = only(tmp_path)
    assert whole[:3] == ("step_40", "distributed", 40)
    assert not whole.missing
    shard = folder / "__0_0.distcp"
    content = shard.read_bytes()
    cut(shard, 500)
    assert only(tmp_path)[5:7] == (
        f"shard __0_0.distcp is cut off: 500 bytes of {len(content)}",
        True,
    )
    shard.rename(folder / "__7_0.distcp")
    assert only(tmp_path)[5:7] == ("shard __0_0.distcp is missing", True)
    shard.write_bytes(content)
    (folder / ".metadata").unlink()
    assert only(tmp_path)[5:7] == (".metadata is missing, which is written last", True)


def test_a_checkpoint_of_the_trainer_needs_the_file_that_is_written_last(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-500"
    folder.mkdir()
    assert only(tmp_path)[:2] == ("checkpoint-500", "Hugging Face")
    assert only(tmp_path)[5:7] == ("it is empty", True)
    (folder / "config.json").write_text("{}")
    safetensors.torch.save_file({"a": torch.ones(10)}, folder / "model.safetensors")
    for name in ("training_args.bin", "optimizer.pt", "rng_state.pth"):
        torch.save({"a": 1}, folder / name)
    assert only(tmp_path)[5:7] == (
        "trainer_state.json is missing, which the Trainer writes last",
        False,
    )
    (folder / "trainer_state.json").write_text('{\n  "global_step": 500,\n  "log_history": []\n}\n')
    assert not only(tmp_path).missing
    cut(folder / "optimizer.pt", 100)
    assert only(tmp_path).missing.startswith("optimizer.pt: cut off: 100 bytes")


def test_ranks_of_deepspeed_have_no_gap(tmp_path: Path) -> None:
    folder = tmp_path / "global_step20"
    folder.mkdir()
    torch.save({"a": 1}, folder / "mp_rank_00_model_states.pt")
    for rank in (0, 1, 3):
        torch.save({"a": 1}, folder / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    (tmp_path / "latest").write_text("global_step20")
    checkpoint = only(tmp_path)
    assert checkpoint[:3] == ("global_step20", "DeepSpeed", 20)
    assert checkpoint.missing == "zero_pp_rank_2_mp_rank_00_optim_states.pt is missing"
    assert checkpoint.pointers == ("latest",)


def test_each_file_that_an_index_names_must_be_there(tmp_path: Path) -> None:
    folder = tmp_path / "final"
    folder.mkdir()
    for number in (1, 2):
        name = f"model-0000{number}-of-00002.safetensors"
        safetensors.torch.save_file({f"a{number}": torch.ones(10)}, folder / name)
    index = folder / "model.safetensors.index.json"
    assert only(tmp_path)[5:7] == (f"{index.name} is missing, which is written last", False)
    index.write_text(
        '{"metadata": {"total_size": 80}, "weight_map": {'
        '"a1": "model-00001-of-00002.safetensors", "a2": "model-00002-of-00002.safetensors"}}'
    )
    assert only(tmp_path)[:2] == ("final", "sharded")
    assert not only(tmp_path).missing
    assert only(tmp_path).pointers == ("final/model.safetensors.index.json",)
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert only(tmp_path).missing == (
        "model-00002-of-00002.safetensors, which model.safetensors.index.json names, is missing"
    )


def test_a_link_names_a_checkpoint_but_is_none(tmp_path: Path) -> None:
    torch.save({"a": 1}, tmp_path / "epoch=3.ckpt")
    (tmp_path / "last.ckpt").symlink_to("epoch=3.ckpt")
    (tmp_path / "best.ckpt").symlink_to("last.ckpt")
    (tmp_path / "out.ckpt").symlink_to("/etc/hostname")
    (tmp_path / "loop").symlink_to(".")
    assert list(found(tmp_path)) == ["epoch=3.ckpt"]
    assert only(tmp_path).pointers == ("best.ckpt", "last.ckpt")
