"""What a script may write to, and what counts as written elsewhere."""

import tempfile
from pathlib import Path

import pytest

from client_lib.drill.folders import check_arguments, is_temporary, outside
from client_lib.errors import InvalidRequest


@pytest.mark.parametrize(
    "words",
    [
        ["--output_dir", "/data/run"],
        ["--out=/data/run"],
        ["--save-dir", "../run"],
        ["trainer.output_dir=/data/run"],
        ["--checkpoint-path", "/data/last.pt"],
        ["--ckpt", "/data/last.pt"],
    ],
)
def test_an_output_elsewhere_is_refused(words: list[str]) -> None:
    with pytest.raises(InvalidRequest, match="outside of the working directory"):
        check_arguments(words)


@pytest.mark.parametrize(
    "words",
    [
        ["--output_dir", "run"],
        ["--data", "/data/images"],
        ["--model=/models/bert"],
        ["--lr", "0.1", "--save"],
        ["/data/images", "--out"],
        ["--outliers", "/data/outliers.csv"],
    ],
)
def test_inputs_elsewhere_are_allowed(words: list[str]) -> None:
    check_arguments(words)


def test_what_was_written_elsewhere_is_told() -> None:
    written = [
        "/base/code/out.txt",
        "/home/me/results.csv",
        "/home/me/.cache/torch/kernels/a",
        "/dev/null",
        "/usr/lib/python3/site-packages/x/__pycache__/y.pyc",
    ]
    assert outside(written, Path("/base")) == ["/home/me/results.csv"]


def test_a_checkpoint_in_the_temporary_folder_is_elsewhere() -> None:
    base = Path(tempfile.gettempdir()) / "client-lib-drill-x"
    checkpoint = f"{tempfile.gettempdir()}/last.pt"
    assert outside([checkpoint, f"{base}/code/last.pt"], base) == [checkpoint]
    assert is_temporary(checkpoint)
    assert not is_temporary("/home/me/last.pt")
