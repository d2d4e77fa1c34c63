"""Scripts for torchrun and for its environment, unmodified: the same loss as a job as
under their own launcher.
"""

from __future__ import annotations

from tests.kit.processes import free_port

from .conftest import MARKS, TORCHRUN, Shell, at_port

pytestmark = MARKS


def test_setup_and_cleanup_on_the_environment(shell: Shell) -> None:
    port = at_port(free_port())
    ranks = [
        shell.start("python native_ddp.py", RANK=str(rank), WORLD_SIZE="2", **port)
        for rank in range(2)
    ]
    by_hand = shell.loss(*ranks)
    assert by_hand.endswith("of 2 ranks")
    assert shell.of("client-lib submit -f -N 2 native_ddp.py") == by_hand


def test_a_script_for_torchrun(shell: Shell) -> None:
    theirs = shell.of(f"{TORCHRUN} 4 torchrun_env.py")
    assert (
        shell.of("client-lib submit -f torchrun --nnodes 2 --nproc_per_node=2 torchrun_env.py")
        == theirs
    )


def test_a_module(shell: Shell) -> None:
    package = shell.folder / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (shell.folder / "torchrun_env.py").rename(package / "train.py")
    line = "python -m torch.distributed.run --nproc-per-node 2 -m package.train"
    assert shell.of(f"client-lib run {line}") == shell.of(f"{TORCHRUN} 2 -m package.train")
