"""The examples as they stand in `examples/`, run as the README and `make demo` run them."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.conftest import LocalServer

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the examples: what they write stays out of the real one."""
    shutil.copytree(
        ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("train.log")
    )
    return tmp_path


def run_line(checkout: Path, *line: str) -> subprocess.CompletedProcess[str]:
    shell = {
        **os.environ,
        "VIRTUAL_ENV": sys.prefix,
        "PATH": os.pathsep.join([str(BIN), os.environ["PATH"]]),
    }
    done = subprocess.run(
        line, cwd=checkout, env=shell, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


def accuracy(text: str) -> float:
    return float(re.findall(r"test accuracy ([\d.]+)", text)[0])


def test_the_demo_trains_on_two_workers_and_shows_all_that_they_say(
    own_server: LocalServer, checkout: Path
) -> None:
    done = run_line(
        checkout,
        "client-lib",
        "submit",
        "-f",
        "-N",
        "2",
        "-i",
        "cpu.1C.2G",
        "examples/digits_ddp.py",
    )
    for rank in (0, 1):
        assert f"[{rank}] rank {rank} of 2 trains on cpu" in done.stdout
        assert f"[{rank}] epoch 11:" in done.stdout
        assert re.search(
            rf"^\[train\.log\] .* rank {rank} epoch 11 loss", done.stdout, re.MULTILINE
        )
    assert accuracy(done.stdout) > 0.95
    assert re.search(
        r"SUCCEEDED in \w+\n`client-lib logs digits-ddp-\w{5}` shows its log again$",
        done.stderr.rstrip(),
    )
    assert accuracy((checkout / "examples" / "train.log").read_text()) > 0.95
    (model,) = re.findall(r"model saved to (.*)", done.stdout)
    assert Path(model).stat().st_size > 10_000


def test_the_ten_lines_of_the_readme_run(own_server: LocalServer, checkout: Path) -> None:
    done = run_line(checkout, sys.executable, "examples/submit.py")
    lines = done.stdout.splitlines()
    assert re.fullmatch(r'Job "digits-ddp-\w{5}" created\.', lines[0])
    assert accuracy(done.stdout) > 0.95
    assert lines[-1] == "SUCCEEDED"


def test_the_job_file_means_the_same_script(own_server: LocalServer, checkout: Path) -> None:
    shown = run_line(
        checkout, "client-lib", "render", "-c", "examples/job.yaml", "-o", "json"
    ).stdout
    assert str(checkout / "examples" / "digits_ddp.py") in shown
    assert '"worker": 1' in shown
