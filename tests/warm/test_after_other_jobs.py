"""A warm script is as a fresh one, whatever the scripts imported from whose
imports the pool was made.
"""

import functools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.warm.conftest import WarmPool, WarmWorker, environment_of
from tests.worker.conftest import Worker

LIMIT_S = 250.0
pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(900),  # a pool of all scripts takes a minute on a loaded machine
    pytest.mark.skipif(sys.platform != "linux", reason="the warm pool is there on Linux only"),
]
OBSERVE = Path(__file__).with_name("observe.py")
DDP = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(8, 1))
model(torch.ones(4, 8)).sum().backward()
dist.destroy_process_group()
"""
SCRIPTS = {
    "nothing": "",
    "texts": (
        "import logging.config, locale, gettext, decimal, readline; 'a'.encode('cp1252'); "
        "'a'.encode('idna')"
    ),
    "processes": (
        "import multiprocessing.pool, concurrent.futures.process, asyncio, subprocess; "
        "multiprocessing.Pool"
    ),
    "files": (
        "import sqlite3, xml.etree.ElementTree, xml.sax, tempfile, zipfile, mimetypes; "
        "mimetypes.init()"
    ),
    "torch": "import torch, torch.optim; from torch.utils.data import DataLoader",
    "ddp": DDP,
    "tensors": "import torch.distributed.tensor",
    "sharded": (
        "import torch.distributed.fsdp, torch.distributed.tensor.parallel, "
        "torch.distributed.checkpoint"
    ),
    "numpy": "import numpy, numpy.fft, tqdm.auto, yaml",
}
LAZY = {
    "configs": "import transformers; transformers.AutoConfig",
    "models": (
        "from transformers import BertConfig, BertModel, Trainer; "
        "BertModel(BertConfig(num_hidden_layers=1))"
    ),
    "auto": "from transformers import AutoModelForCausalLM as Auto, AutoTokenizer, GPT2Config, "
    "pipeline;Auto.from_config(GPT2Config(n_layer=1, vocab_size=9))",
}
"""Packages that import a module when a name of it is read, and that replace themselves
in sys.modules meanwhile.
"""
PAIRS = [
    *(
        (trained, script)
        for trained in SCRIPTS
        for script in SCRIPTS
        if trained not in ("nothing", script)
    ),
    *(
        (trained, script)
        for trained in LAZY
        for script in (*LAZY, "nothing", "ddp")
        if script != trained
    ),
    *(("ddp", script) for script in LAZY),
]
FEW = [
    ("ddp", "nothing"),
    ("ddp", "texts"),
    ("ddp", "processes"),
    ("ddp", "torch"),
    ("ddp", "numpy"),
    ("ddp", "ddp"),
]
SCRIPT = """
observe = type(__import__("sys"))("observe")
exec(open({observe!r}).read(), vars(observe))
first = observe.at_start()
{script}
last = observe.at_end()
import json
with open("seen.json", "w") as file:
    json.dump([first, last], file)
"""


def text(script: str) -> str:
    return SCRIPT.format(observe=str(OBSERVE), script={**SCRIPTS, **LAZY}[script])


def seen(worker: Worker) -> list[dict[str, Any]]:
    """The notes of a script at its first and its last line."""
    return json.loads((worker.folder / "seen.json").read_text())  # JSON that the script wrote


class Runs:
    """Fresh runs, and pools of what they have imported. Each is made once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.fresh = functools.lru_cache(None)(self._fresh)
        self.pools: dict[str, WarmPool] = {}

    def folder(self, *names: str) -> Path:
        folder = self._folder / "-".join(names)
        folder.mkdir(exist_ok=True)
        return folder

    def _fresh(self, script: str) -> tuple[list[dict[str, Any]], list[str]]:
        worker = Worker(self.folder("fresh", script), text(script), record_imports=True)
        assert worker.start().go().report(LIMIT_S)["exit_code"] == 0, worker.lines("stderr")
        worker.close()
        return seen(worker), json.loads(Path(worker.directory.imports).read_text())

    def pool(self, script: str) -> WarmPool:
        if script not in self.pools:
            folder = self.folder("pool", script)
            self.pools[script] = WarmPool(
                folder, self.fresh(script)[1], environment_of(Worker(folder))
            )
            self.pools[script].ready(LIMIT_S)
        return self.pools[script]

    def warm(self, trained: str, script: str) -> list[dict[str, Any]]:
        worker = WarmWorker(self.folder("warm", trained, script), text(script))
        worker.started_by(self.pool(trained)).go()
        assert worker.started["warm"], worker.started
        assert worker.report(LIMIT_S)["exit_code"] == 0, worker.lines("stderr")
        worker.close()
        return seen(worker)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    made = Runs(tmp_path_factory.mktemp("runs"))
    with pytest.MonkeyPatch.context() as patch:
        # some modules keep the last element of a set that they have walked through
        patch.setenv("PYTHONHASHSEED", "0")
        yield made
    for pool in made.pools.values():
        pool.close()


def differences(fresh: Any, warm: Any, path: str = "") -> Iterator[str]:
    if isinstance(fresh, dict) and isinstance(warm, dict):
        for name in sorted({**fresh, **warm}):
            yield from differences(fresh.get(name), warm.get(name), f"{path} {name}")
    elif fresh != warm:
        yield f"{path}: {str(fresh)[:300]} != {str(warm)[:300]}"


@pytest.mark.xdist_group("warm pairs")
@pytest.mark.parametrize(
    ("trained", "script"),
    [
        pytest.param(*pair, marks=[] if pair in FEW else [pytest.mark.long])
        for pair in [("ddp", "ddp"), *PAIRS]
    ],
    ids=lambda name: str(name),
)
def test_a_script_sees_the_same_warm_and_fresh(
    runs: Runs, trained: str, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if LAZY.keys() & {trained, script}:
        pytest.importorskip("transformers")
    monkeypatch.delenv("PYTEST_CURRENT_TEST")  # the fresh run may be that of an earlier test
    fresh, warm = runs.fresh(script)[0], runs.warm(trained, script)
    for moment, one, other in zip(("at the start", "at the end"), fresh, warm, strict=True):
        assert list(differences(one, other)) == [], moment
