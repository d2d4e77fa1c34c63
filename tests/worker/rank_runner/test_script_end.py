"""What a rank tells of the end of its script."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from client_lib.worker.rank_runner.script_end import place_in_loop
from tests.kit.processes import free_port
from tests.worker.conftest import Worker


@pytest.mark.parametrize(
    ("source", "place"),
    [
        ("import sys\nfor n in range(9):\n    if n: sys.exit(0)\n", "train.py:3"),
        ("import sys\ndef leave(): sys.exit()\nwhile True:\n    leave()\n", "train.py:2"),
        (
            "import sys\ndef main():\n    for n in range(9): pass\nsys.exit(main())\n",
            "",
        ),
        ("for n in range(9): pass\nraise SystemExit(0)\n", ""),
    ],
    ids=["in a loop", "below a loop", "at the end", "after a loop"],
)
def test_an_exit_is_told_if_it_leaves_a_loop(tmp_path: Path, source: str, place: str) -> None:
    path = tmp_path / "train.py"
    path.write_text(source)
    with pytest.raises(SystemExit) as left:
        exec(compile(source, str(path), "exec"), {})
    trace = left.value.__traceback__
    assert trace
    assert place_in_loop(trace.tb_next) == place


SCRIPT = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
def step():
    dist.all_reduce(torch.ones(1))
for _ in range(5):
    step()
dist.barrier()
if dist.get_rank() == 1:
    dist.destroy_process_group()
sys.exit(0)
"""


@pytest.mark.process
def test_the_collectives_of_each_rank_are_in_the_report_with_their_places(
    worker: Callable[..., Worker],
) -> None:
    made = worker(SCRIPT, processes_per_worker=2, master_port=free_port())
    report: Any = made.start().go().report(120.0)
    told = [rank["script_end"] for rank in report["ranks"]]
    assert told == 2 * [
        {
            "exited_at": None,
            "group": "gloo:0",
            "collectives": 6,
            "places": {"barrier (train.py:8)": 1, "all_reduce in step (train.py:5)": 5},
        }
    ], json.dumps(report["ranks"])
