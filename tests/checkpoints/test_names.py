"""Steps in names."""

import pytest

from client_lib.checkpoints import step_of


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step=500.ckpt", 500),
        ("step_500", 500),
        ("step-00500", 500),
        ("checkpoint-500", 500),
        ("checkpoint_500.pt", 500),
        ("global_step500", 500),
        ("epoch=3-step=1200.ckpt", 1200),
        ("epoch=3-step=1200-v1.ckpt", 1200),
        ("step=7-val_loss=0.25.ckpt", 7),
        ("400.pt", 400),
        ("400", 400),
        ("0.pt", 0),
        ("iter_0000500", 500),
        ("model_0004999.pth", 4999),
        ("ckpt_5.pt", 5),
        ("optimizer-400.pt", 400),
        ("optim_400.pt", 400),
        ("Step-12.pt", 12),
        ("epoch=3.ckpt", None),
        ("last.ckpt", None),
        ("model.safetensors", None),
        ("pytorch_model-00001-of-00005.bin", None),
        ("model-00002-of-00005.safetensors", None),
        ("mp_rank_00_model_states.pt", None),
        ("run-2026", None),
        ("footstep5x", None),
        ("step_" + "9" * 15, 10**15 - 1),
        ("step_1" + "0" * 30 + ".pt", None),
        ("step_" + "0" * 200 + "7.pt", 7),
        ("step_\u0663.pt", None),
        ("", None),
    ],
)
def test_a_name_tells_its_step(name: str, step: int | None) -> None:
    assert step_of(name) == step
