"""Scripts for torchrun and for its environment, unmodified: the same loss as a job as under their own launcher."""

from __future__ import annotations

import pytest

from .conftest import OURS, TORCHRUN, Shell, at_port, free_port

pytestmark = pytest.mark.process


def test_setup_and_cleanup_on_the_environment(shell: Shell) -> None:
    port = at_port(free_port())
    ranks = [shell.start("python native_ddp.py", RANK=str(rank), WORLD_SIZE="4", **port) for rank in range(4)]
    by_hand = shell.loss(*ranks)
    assert by_hand.endswith("of 4 ranks")
    assert shell.of(f"{OURS} native_ddp.py") == by_hand


def test_a_script_for_torchrun(shell: Shell) -> None:
    theirs = shell.of(f"{TORCHRUN} torchrun_env.py")
    assert shell.of("client-lib submit -f torchrun --nnodes 2 --nproc_per_node=2 torchrun_env.py") == theirs


def test_a_module(shell: Shell) -> None:
    package = shell.folder / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (shell.folder / "torchrun_env.py").rename(package / "train.py")
    line = "python -m torch.distributed.run --nproc-per-node 2 -m package.train"
    assert shell.of(f"client-lib run {line}") == shell.of(f"{TORCHRUN.replace('4', '2')} -m package.train")
