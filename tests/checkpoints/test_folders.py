"""Checkpoints that are folders."""

from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch.distributed.checkpoint.state_dict_saver import save

from client_lib.checkpoints import distributed
from tests.checkpoints.kit import cut, found, only

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


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


def test_shards_end_whole_if_their_metadata_are_too_large_to_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # metadata of 2 MB would take half a second to write
    monkeypatch.setattr(distributed, "_LARGEST_READ", 10)
    folder = tmp_path / "step_40"
    save({"a": torch.zeros(1000), "n": 7}, checkpoint_id=folder, no_dist=True)
    assert not only(tmp_path).missing
    cut(folder / "__0_0.distcp", 500)
    assert only(tmp_path)[5:7] == ("shard __0_0.distcp is cut off: 500 bytes", True)


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


def weights(path: Path) -> None:
    safetensors.torch.save_file({"a": torch.ones(10)}, path)


def object_file(path: Path) -> None:
    torch.save({"a": 1}, path)


def test_a_folder_inside_a_checkpoint_is_judged_with_it_and_not_listed(tmp_path: Path) -> None:
    """As the Trainer with FSDP and with DeepSpeed leaves it."""
    folder = tmp_path / "checkpoint-7"
    folder.mkdir()
    (folder / "trainer_state.json").write_text('{"global_step": 7}')
    save({"a": torch.zeros(9)}, checkpoint_id=folder / "pytorch_model_fsdp_0", no_dist=True)
    (folder / "global_step7").mkdir()
    object_file(folder / "global_step7" / "mp_rank_00_model_states.pt")
    (folder / "latest").write_text("global_step7")
    assert only(tmp_path)[:3] == ("checkpoint-7", "Hugging Face", 7)
    assert not only(tmp_path).missing
    (folder / "pytorch_model_fsdp_0" / ".metadata").unlink()
    assert only(tmp_path)[5:7] == (
        "pytorch_model_fsdp_0: .metadata is missing, which is written last",
        True,
    )
    (folder / "pytorch_model_fsdp_0" / "__0_0.distcp").unlink()
    cut(folder / "global_step7" / "mp_rank_00_model_states.pt", 9)
    assert only(tmp_path).missing.startswith("global_step7/mp_rank_00_model_states.pt: cut off: 9")


def test_checkpoints_beside_the_final_model_are_listed_on_their_own(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    weights(tmp_path / "model.safetensors")
    object_file(tmp_path / "training_args.bin")
    for step in (1, 2):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        weights(folder / "model.safetensors")
        (folder / "trainer_state.json").write_text("{}")
    assert set(found(tmp_path)) == {".", "checkpoint-1", "checkpoint-2"}
    assert not any(each.missing for each in found(tmp_path).values())


def test_save_pretrained_in_a_folder_with_the_name_of_the_trainers_is_complete(
    tmp_path: Path,
) -> None:
    """Unless the Trainer has written a folder beside it: then its last file is missing."""
    folder = tmp_path / "checkpoint-3"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    weights(folder / "model.safetensors")
    assert not only(tmp_path).missing
    other = tmp_path / "checkpoint-2"
    other.mkdir()
    weights(other / "model.safetensors")
    (other / "trainer_state.json").write_text("{}")
    checkpoint = found(tmp_path)["checkpoint-3"]
    assert checkpoint.missing.startswith("trainer_state.json is missing")
    assert not checkpoint.is_proof


def test_a_cut_state_of_the_trainer_is_a_proof(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-3"
    folder.mkdir()
    weights(folder / "model.safetensors")
    (folder / "trainer_state.json").write_text('{"global_step": 3, "log_history": [{"loss": 1')
    assert only(tmp_path)[5:7] == ("trainer_state.json is cut off: 45 bytes", True)


def test_a_state_of_accelerate_needs_the_random_states_of_each_rank(tmp_path: Path) -> None:
    """The order of `accelerate.checkpointing.save_accelerator_state`."""
    folder = tmp_path / "checkpoint_4"
    folder.mkdir()
    weights(folder / "model.safetensors")
    object_file(folder / "optimizer.bin")
    assert only(tmp_path)[:3] == ("checkpoint_4", "Accelerate", 4)
    assert only(tmp_path).missing == (
        "random_states_0.pkl is missing, which Accelerate writes last"
    )
    object_file(folder / "random_states_0.pkl")
    assert not only(tmp_path).missing
    object_file(folder / "random_states_2.pkl")
    assert only(tmp_path)[5:7] == ("random_states_1.pkl is missing", False)
    object_file(folder / "random_states_1.pkl")
    cut(folder / "random_states_1.pkl", 7)
    assert only(tmp_path).missing.startswith("random_states_1.pkl: cut off: 7 bytes")


@pytest.mark.parametrize("protocol", [2, 4])
def test_the_model_state_of_deepspeed_tells_the_number_of_partitions(
    tmp_path: Path, protocol: int
) -> None:
    folder = tmp_path / "global_step300"
    folder.mkdir()
    model = {"module": {"w": torch.ones(9)}, "dp_world_size": 300, "mp_world_size": 1}
    torch.save(model, folder / "mp_rank_00_model_states.pt", pickle_protocol=protocol)
    for rank in range(300):
        (folder / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt").write_bytes(
            (folder / "mp_rank_00_model_states.pt").read_bytes()
        )
    assert not only(tmp_path).missing
    (folder / "bf16_zero_pp_rank_299_mp_rank_00_optim_states.pt").unlink()
    assert only(tmp_path)[5:7] == ("partitions of 299 ranks are there, of 300", False)


def test_deepspeed_without_zero_has_no_partitions(tmp_path: Path) -> None:
    for step in (1, 2):
        (tmp_path / f"global_step{step}").mkdir()
        object_file(tmp_path / f"global_step{step}" / "mp_rank_00_model_states.pt")
    assert "`latest` is missing" in found(tmp_path)["global_step1"].missing
    (tmp_path / "latest").write_text("global_step1\n")
    assert not any(each.missing for each in found(tmp_path).values())
    partition = "zero_pp_rank_0_mp_rank_00_optim_states.pt"
    object_file(tmp_path / "global_step1" / partition)
    assert found(tmp_path)["global_step2"][5:7] == (
        "the files *_optim_states.pt are missing, which the folders beside it have",
        False,
    )


def test_layers_and_experts_of_deepspeed_may_have_gaps(tmp_path: Path) -> None:
    folder = tmp_path / "global_step5"
    folder.mkdir()
    (tmp_path / "latest").write_text("global_step5")
    for layer in (0, 2, 9):
        object_file(folder / f"layer_{layer:02}-model_00-model_states.pt")
        object_file(folder / f"layer_{layer}_expert_3_mp_rank_00_model_states.pt")
    object_file(folder / "mp_rank_00_model_states.pt")
    assert not only(tmp_path).missing


def test_a_checkpoint_of_lightning_with_deepspeed_is_one(tmp_path: Path) -> None:
    inside = tmp_path / "epoch=1-step=30.ckpt" / "checkpoint"
    inside.mkdir(parents=True)
    object_file(inside / "mp_rank_00_model_states.pt")
    object_file(inside / "zero_pp_rank_0_mp_rank_00_optim_states.pt")
    (inside.parent / "latest").write_text("checkpoint")
    assert only(tmp_path)[:3] == ("epoch=1-step=30.ckpt", "Lightning", 30)
    assert not only(tmp_path).missing


def test_megatron_names_its_newest_iteration(tmp_path: Path) -> None:
    save({"a": torch.zeros(9)}, checkpoint_id=tmp_path / "iter_0000500", no_dist=True)
    object_file(tmp_path / "iter_0000500" / "common.pt")
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("500")
    assert only(tmp_path)[:3] == ("iter_0000500", "distributed", 500)
    assert only(tmp_path).pointers == ("latest_checkpointed_iteration.txt",)


def test_shards_are_counted_where_there_is_no_index(tmp_path: Path) -> None:
    for number in (1, 3):
        weights(tmp_path / f"model-0000{number}-of-00003.safetensors")
    assert only(tmp_path)[5:7] == ("model-00002-of-00003.safetensors is missing", True)


@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
def test_an_index_that_is_cut_off_is_a_proof(tmp_path: Path, suffix: str) -> None:
    index = tmp_path / f"model.{suffix}.index.json"
    index.write_text('{"weight_map": {"a": "model-00001-of-00002.' + suffix)
    assert only(tmp_path)[5:7] == (f"{index.name} is cut off: {index.stat().st_size} bytes", True)
