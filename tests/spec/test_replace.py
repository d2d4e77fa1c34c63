"""Copies of models with other values (mypy's part: tests/typing/fields.py)."""

from pathlib import Path

import pytest

import client_lib
import server_stub
from client_lib.spec.job import JobSpec
from client_lib.spec.replace import replaced


def test_a_copy_has_other_values_and_the_model_stays() -> None:
    spec = JobSpec(script="train.py")
    assert replaced(spec, n_workers=2).n_workers == 2
    assert spec.n_workers == 1


def test_a_name_that_the_model_lacks_is_an_error() -> None:
    with pytest.raises(TypeError, match="JobSpec has no field nmae"):
        replaced(JobSpec(script="train.py"), nmae="x")  # type: ignore[call-arg]


def test_no_model_is_copied_without_this_check() -> None:
    folders = [Path(each.__file__ or "").parent for each in (client_lib, server_stub)]
    sources = [path for folder in folders for path in folder.rglob("*.py")]
    copying = [path.name for path in sources if "model_copy(update" in path.read_text("utf-8")]
    assert copying == ["replace.py"]
