"""A real job whose second rank has a NaN loss: everywhere that people look."""

import json
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform == "win32", reason="jobs don't run on Windows itself"),
]

SCRIPT = """
import os, sys
rank = int(os.environ["RANK"])
for step in range(1, 21):
    loss = float(sys.argv[1]) if rank == 1 and step >= 5 else 1.0 / step
    print(f"step {step}/20 loss={loss}", flush=True)
"""
SENTENCE = "loss was NaN on rank 1 from step 5 (rank 0: finite)"


def test_a_nan_on_rank_1_is_told_by_each_command_and_a_healthy_job_tells_nothing(
    environment: dict[str, str], local_server: Path, commands_here: None, cli: Run, tmp_path: Path
) -> None:
    environment |= {"VIRTUAL_ENV": sys.prefix, "CLIENT_LIB_STATE_DIR": str(local_server)}
    (tmp_path / "train.py").write_text(SCRIPT)

    def submit(name: str, value: str) -> str:
        line = ("submit", "-f", "--name", name, "--processes-per-worker", "2", "train.py", value)
        done = cli(*line)
        assert done.returncode == 0, done.stderr
        (last,) = [each for each in done.stderr.splitlines() if each.startswith(f"{name} ")]
        return last

    assert submit("lost-loss", "nan").endswith(f"; {SENTENCE}")
    assert SENTENCE not in submit("kept-loss", "0.5")

    def shown(*line: str) -> str:
        done = cli(*line)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert shown("wait", "lost-loss", "kept-loss").splitlines() == [
        f"lost-loss SUCCEEDED; {SENTENCE}",
        "kept-loss SUCCEEDED",
    ]
    listed = {job["name"]: job for job in json.loads(shown("list", "-o", "json"))}
    assert listed["lost-loss"]["attention"] == [{"code": "loss", "sentence": SENTENCE}]
    assert listed["kept-loss"]["attention"] == []
    rows = shown("list", "--name", "lost-loss", "-o", "wide").splitlines()
    assert rows[1].endswith(SENTENCE)
    assert SENTENCE in shown("status", "-v", "lost-loss")
    assert shown("explain", "lost-loss").splitlines()[0].endswith(f"; {SENTENCE}")
    explained = json.loads(shown("explain", "-o", "json", "lost-loss"))
    assert explained["attention"] == listed["lost-loss"]["attention"]
    for command in ("status", "explain"):
        assert "NaN" not in shown(command, "kept-loss")
