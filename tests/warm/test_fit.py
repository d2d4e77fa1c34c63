"""Which ranks may be warm: the table of variables that libraries read when they are
loaded, whole, and its page.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from client_lib.launcher_protocol.plan import WorkerPlan
from client_lib.launcher_protocol.rank_processes import Process
from client_lib.worker.warm import fit
from client_lib.worker.warm.rank import fingerprint
from tests.worker.conftest import Worker

PATTERNS = [name for names, _ in fit.READ_AT_LOAD for name in names.split(", ")]
POOL = fit.PoolState(sys.executable, {"PATH": "/bin"}, frozenset({"json"}))


@pytest.fixture
def plan(tmp_path: Path) -> WorkerPlan:
    return Worker(tmp_path, rank_runner=True).plan


def refusal(
    plan: WorkerPlan,
    environment: dict[str, str],
    pool: fit.PoolState = POOL,
    beside: tuple[str, ...] = (),
) -> str:
    process = Process(0, 0, [sys.executable, *plan.command], environment, plan.working_dir)
    return fit.refusal(pool, plan, process, beside) or ""


@pytest.mark.parametrize("pattern", PATTERNS)
def test_each_variable_of_the_table_forces_a_fresh_start_whichever_side_has_it(
    plan: WorkerPlan, pattern: str
) -> None:
    for name in {pattern.replace("*", ""), pattern.replace("*", "ANY")}:
        assert name in refusal(plan, {name: "1"})
        has_it = POOL._replace(environment={name: "1"})
        assert name in refusal(plan, {}, has_it)
        assert name in refusal(plan, {name: "2"}, has_it)
        assert refusal(plan, {name: "1"}, has_it) == ""


@pytest.mark.parametrize("name", sorted(fit.READ_LATER))
def test_what_is_set_in_every_rank_or_read_later_does_not(plan: WorkerPlan, name: str) -> None:
    assert refusal(plan, {name: "3"}) == ""


def test_other_variables_and_secrets_do_not_and_no_value_is_said(plan: WorkerPlan) -> None:
    assert (
        refusal(
            plan, {"MY_LR": "0.1", "HF_TOKEN": "hf_1", "WANDB_API_KEY": "w", "TORCH_PASSWORD": "p"}
        )
        == ""
    )
    assert "hf_1" not in refusal(plan, {"HF_HOME": "hf_1"})


def test_other_reasons_for_a_fresh_start(plan: WorkerPlan) -> None:
    assert "no Python script" in refusal(plan._replace(python=None), {})
    assert "other/python" in refusal(plan._replace(python="other/python"), {})
    assert "without the rank runner" in refusal(plan._replace(rank_runner=False), {})
    assert "torchrun" in refusal(plan._replace(type="pytorch_elastic"), {})
    assert "OMP_NUM_THREADS=2,1" in refusal(plan, {"OMP_NUM_THREADS": "2,1"})
    relative = POOL._replace(environment={"PYTHONPATH": "lib"})
    assert "relative" in refusal(plan, {"PYTHONPATH": "lib"}, relative)
    assert [
        bool(refusal(plan, {}, beside=(name,)))
        for name in ("json.py", "json", "json.cpython-311.so")
    ] == [True] * 3
    assert refusal(plan, {}, beside=("json.txt", "train.py")) == ""


def test_the_page_has_the_table_as_it_is_and_nothing_else() -> None:
    text = (Path(__file__).parents[2] / "docs" / "warm-start.md").read_text()
    rows = [re.split(r" *\| *", line)[1:3] for line in text.splitlines() if line.startswith("| `")]
    assert rows == [
        [", ".join(f"`{name}`" for name in names.split(", ")), reader]
        for names, reader in fit.READ_AT_LOAD
    ]
    later = text[text.index("Not among them") : text.index("; and all whose name")]
    assert set(re.findall(r"`(\w+)`", later)) == fit.READ_LATER


WATCH = """
import json, os
read = set()
class Watched(type(os.environ)):
    def __getitem__(self, name):
        read.add(name)
        return super().__getitem__(name)
    def __contains__(self, name):
        read.add(name)
        return super().__contains__(name)
os.environ.__class__ = Watched
import numpy, torch, torch.distributed, torch.multiprocessing
import torch._dynamo, torch._inductor.compile_fx
import accelerate, sklearn, transformers.trainer, tqdm, yaml
print(json.dumps(sorted(read)))
"""
HARMLESS = {
    "PATH": "programs are looked for when they are needed",
    "CI": "huggingface_hub tells its server that it runs there",
    "CLAUDE_CONFIG_DIR": "where a command of huggingface_hub installs to",
    "COLUMNS": "rich asks at each use, too",
    "LINES": "rich asks at each use, too",
    "OAUTH_CLIENT_SECRET": "secret by name: a pool has none",
    "SOURCE_DATE_EPOCH": "for builds of packages",
    "_NETWORKX_BUILDING_DOCS_": "for builds of networkx",
    "_PYTHON_PROJECT_BASE": "for builds of Python",
    "_PYTHON_SYSCONFIGDATA_NAME": "for builds of Python",
}


@pytest.mark.process
def test_what_training_packages_ask_for_when_they_are_imported_is_in_the_table() -> None:
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    done = subprocess.run(
        [sys.executable, "-c", WATCH],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=280,
    )
    names = json.loads(done.stdout.splitlines()[-1])
    assert {"TORCH_LOGS", "HF_HOME"} <= set(names)
    known = fit.READ_LATER | HARMLESS.keys()
    assert [name for name in names if not fit.is_read_at_load(name) and name not in known] == []


def test_a_link_to_nothing_among_the_packages_hides_none_of_them(tmp_path: Path) -> None:
    (tmp_path / "broken.pth").symlink_to(tmp_path / "removed")
    packages = {str(tmp_path / f"package{number}-1.0.dist-info") for number in range(50)}
    for package in packages:
        os.mkdir(package)
    assert set(fingerprint((str(tmp_path),))) == packages
