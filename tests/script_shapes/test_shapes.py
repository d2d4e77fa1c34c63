"""A script of each shape, unmodified: the same loss as a job as under the
launcher that it was written for.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.processes import free_port

from .conftest import MARKS, OURS, TORCHRUN, Shell, at_port

pytestmark = MARKS


def test_a_script_that_spawns_its_own_processes(shell: Shell) -> None:
    port = at_port(free_port())
    line = "python spawned.py --per-node 1"
    by_hand = shell.loss(
        *[shell.start(line, RANK=str(node), WORLD_SIZE="2", **port) for node in range(2)]
    )
    assert by_hand.endswith("of 2 ranks")
    assert shell.of("client-lib submit -f -N 2 spawned.py --per-node 1") == by_hand


def test_the_local_rank_as_an_argument_in_either_spelling(shell: Shell) -> None:
    ours = "client-lib submit -f --processes-per-worker 2 local_rank_argument.py --lr 0.05"
    theirs = shell.of(
        "python -m torch.distributed.launch --nproc_per_node=2 local_rank_argument.py --lr 0.05"
    )
    assert shell.of(ours) == theirs
    script = shell.folder / "local_rank_argument.py"
    script.write_text(script.read_text().replace("--local-rank", "--local_rank"))
    assert shell.of(ours) == theirs


def test_accelerate(shell: Shell) -> None:
    pytest.importorskip("accelerate")
    theirs = shell.of(f"{TORCHRUN} 4 accelerated.py theirs.pt", ACCELERATE_USE_CPU="true")
    line = "accelerate launch --cpu --num_machines 2 --num_processes 4 accelerated.py ours.pt"
    assert shell.of(f"client-lib submit -f {line}") == theirs
    assert _weights(shell.folder / "ours.pt") == _weights(shell.folder / "theirs.pt")


def _weights(file: Path) -> list[float]:
    import torch

    return [
        round(number, 5)
        for tensor in torch.load(file).values()
        for number in tensor.flatten().tolist()
    ]


def test_transformers_trainer(shell: Shell) -> None:
    pytest.importorskip("transformers")
    assert shell.of("client-lib submit -f -N 2 trained.py ours") == shell.of(
        f"{TORCHRUN} 2 trained.py theirs"
    )


def test_lightning(shell: Shell) -> None:
    pytest.importorskip("lightning")
    theirs = shell.of("python lightning_trained.py --devices 4")
    assert theirs.endswith("of 4 ranks")
    assert shell.of(f"{OURS} lightning_trained.py --devices 2 --num-nodes 2") == theirs
