"""The other ways to run a function: `remote`, accelerate's notebook_launcher, pyspark's
TorchDistributor.

torch is imported where it is needed: the workers of each function import this module.
"""

import inspect
import os
from collections.abc import Iterable, Sized
from pathlib import Path

import pytest

import client_lib
from client_lib import Job
from client_lib.notebook import notebook_launcher
from client_lib.torch_distributor import TorchDistributor


@client_lib.remote(n_workers=2)
def add(one: int, other: int = 0) -> tuple[int, str]:
    return one + other, os.environ["WORLD_SIZE"]


def train_ddp(rank: int, world_size: int) -> tuple[int, int]:
    return rank, world_size


def train(rank: int, lr: float, size: int, local_rank: int) -> tuple[int, float, int, int]:
    return rank, lr, size, local_rank


def shape() -> tuple[str, ...]:
    return tuple(os.environ[name] for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))


def fail() -> None:
    print("about to fail")
    raise ValueError("of the function")


def test_a_call_of_a_remote_function_is_a_job(folder: Path) -> None:
    assert add(1, other=2) == (3, "2")
    assert add.options(n_workers=1).submit(4).result(timeout=60) == (4, "1")
    assert add.__name__ == "add"


class Scale:
    def __init__(self, factor: int) -> None:
        self.factor = factor

    @client_lib.remote(n_workers=1)
    def times(self, value: int) -> int:
        return self.factor * value


def test_a_remote_method_takes_its_object_along_and_is_plain_in_a_worker(folder: Path) -> None:
    assert Scale(3).times(4) == 12

    @client_lib.remote
    def outer() -> tuple[tuple[int, str], str]:
        return add(1, 1), os.environ["WORLD_SIZE"]

    assert outer() == ((2, "1"), "1")  # in the same process: no job of a job


def test_an_option_that_job_has_not_is_a_type_error_at_the_definition() -> None:
    with pytest.raises(TypeError, match="n_wokers"):
        client_lib.remote(n_wokers=2)(shape)


def test_notebook_launcher_has_the_parameters_of_accelerate() -> None:
    import accelerate

    ours, theirs = (
        inspect.signature(f).parameters for f in (notebook_launcher, accelerate.notebook_launcher)
    )
    assert [(p.name, p.default) for p in ours.values()] == [
        (p.name, p.default) for p in theirs.values()
    ]


def test_ranks_are_filled_by_name_at_any_position(folder: Path) -> None:
    assert notebook_launcher(train_ddp, args=(), num_processes=2) == (0, 2)
    with pytest.warns(UserWarning, match="rdzv_id='one' has no effect"):
        assert notebook_launcher(train, args=(0.1,), num_processes=1, rdzv_id="one") == (
            0,
            0.1,
            1,
            0,
        )


def loop(scale: float) -> tuple[int, str, str, float]:
    """As accelerate's notebook examples have it."""
    import accelerate
    import torch

    accelerator = accelerate.Accelerator()
    total = accelerator.reduce(torch.tensor(scale * accelerator.process_index), "sum")
    return (
        accelerator.num_processes,
        accelerator.mixed_precision,
        accelerator.device.type,
        total.item(),
    )


@pytest.mark.process
def test_a_loop_written_for_accelerate_finds_its_settings(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert notebook_launcher(loop, (2.0,), num_processes=2, mixed_precision="bf16") == (
        2,
        "bf16",
        "cpu",
        2.0,
    )


def test_a_distributor_gives_rank_0_s_value(folder: Path) -> None:
    assert TorchDistributor(num_processes=2, local_mode=True, use_gpu=False).run(shape) == (
        "2",
        "2",
    )
    assert TorchDistributor(num_workers=2, local_mode=False, use_gpu=False).run(shape) == ("2", "1")


def test_a_distributor_runs_a_file_with_its_arguments_and_returns_none(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "train.py").write_text("import sys; print('got', sys.argv[1:])")
    assert TorchDistributor(use_gpu=False).run("train.py", "--lr", 0.1) is None
    assert "got ['--lr', '0.1']" in capsys.readouterr().out
    with pytest.raises(ValueError, match="key-word"):
        TorchDistributor(use_gpu=False).run("train.py", lr=0.1)


def test_a_distributor_raises_what_the_function_raised(folder: Path) -> None:
    with pytest.raises(ValueError, match="of the function") as raised:
        TorchDistributor(use_gpu=False).run(fail)
    assert "Its last lines before that:\n    about to fail" in str(raised.value.__cause__)


@pytest.fixture
def one_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose nvidia-smi lists one GPU."""
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'GPU 0: one'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.parametrize("visible", ["", "-1"])
@pytest.mark.usefixtures("one_gpu")
def test_use_gpu_without_gpus_says_that_it_runs_on_the_cpu(
    folder: Path, monkeypatch: pytest.MonkeyPatch, visible: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.warns(UserWarning, match="run on the CPU"):
        assert TorchDistributor(2).run(shape) == ("2", "2")


@pytest.mark.usefixtures("one_gpu")
def test_more_processes_than_gpus_are_capped_with_a_warning(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.warns(RuntimeWarning, match="'num_processes' was reset"):
        assert TorchDistributor(2, type="nogpu").run(shape) == ("1", "1")


@pytest.mark.process
def test_a_data_loader_travels_as_an_argument(folder: Path) -> None:
    import torch

    data = torch.utils.data.TensorDataset(torch.arange(6.0))
    loader = torch.utils.data.DataLoader(data, batch_size=4)
    assert TorchDistributor(num_processes=1, use_gpu=False).run(count, loader) == [4, 2]


def count(loader: Iterable[tuple[Sized]]) -> list[int]:
    return [len(batch) for (batch,) in loader]


@pytest.mark.process
def test_a_function_is_called_by_elastic_agents_too(folder: Path) -> None:
    job = Job(script=rendezvous, type="pytorch_elastic", n_workers=2, processes_per_worker=1)
    job.submit()
    assert sorted(job.results(timeout=100)) == [(0, 2, "torchrun"), (1, 2, "torchrun")]


def rendezvous() -> tuple[int, int, str]:
    launcher = "torchrun" if "TORCHELASTIC_RUN_ID" in os.environ else "none"
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), launcher


@pytest.mark.parametrize("count", [0, -1, True, "2"])
def test_a_number_of_processes_that_is_none_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match="positive integer"):
        TorchDistributor(count)
