"""The records that the probe of a rank writes, read back."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import client_lib.drill
from client_lib.drill.records import RankRecords, parse
from client_lib.drill.restored import Restored, StatePart, compare

PROBE = Path(client_lib.drill.__file__).parent / "probe.py"
SCRIPT = """
import os, sys
exec(compile(open(os.environ["CLIENT_LIB_DRILL"] + "/probe.py").read(), "probe.py", "exec"), {})
import torch
how, path, begin, end = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
optimizer = torch.optim.Adam(model.parameters())
if begin:
    state = torch.load(path)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    if "random" not in how:
        torch.set_rng_state(state["random"])
import random
getstate = random.getstate
for step in range(begin, end):
    if "error" in how:
        random.getstate = getstate if step != 1 else lambda: 1 / 0
    def closure():
        optimizer.zero_grad()
        batch = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
        loss = model(batch).square().mean()
        loss.backward()
        return loss
    if "closure" in how:
        optimizer.step(closure)
    else:
        closure()
        optimizer.step()
    if step == 1:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({**state, "random": torch.get_rng_state()}, path + ".new")
        os.replace(path + ".new", path)
"""

pytestmark = pytest.mark.process


def run(folder: Path, how: str, begin: int, end: int) -> RankRecords:
    """The records of some steps; the steps from 2 on begin with what step 1 has saved."""
    records = folder / f"records-{begin}-{end}"
    records.mkdir()
    shutil.copy(PROBE, records)
    argv = [sys.executable, "-c", SCRIPT, how, str(folder / "last.pt"), str(begin), str(end)]
    subprocess.run(argv, env={"CLIENT_LIB_DRILL": str(records)}, check=True)
    with open(records / "rank-0.jsonl", "rb") as file:
        return parse(file)


@pytest.mark.parametrize("how", ["plain", "closure"])
def test_a_step_is_the_same_after_a_resume(tmp_path: Path, how: str) -> None:
    whole = run(tmp_path, how, 0, 4)
    resumed = run(tmp_path, how, 2, 4)
    assert not whole.errors
    assert None not in {step.batch for step in whole.steps}
    assert compare(whole.steps[:3], resumed.steps, whole.steps, whole.steps) == Restored(2, 3, ())
    last = str(tmp_path / "last.pt")
    assert whole.saved == {f"{last}.new"}
    assert last in whole.renamed


@pytest.mark.parametrize("how", ["random", "random, closure"])
def test_lost_random_numbers_are_seen(tmp_path: Path, how: str) -> None:
    whole = run(tmp_path, how, 0, 4)
    resumed = run(tmp_path, how, 2, 4)
    found = compare(whole.steps[:3], resumed.steps, whole.steps, whole.steps)
    assert found == Restored(2, 3, (StatePart.RANDOM,))


def test_a_step_that_the_probe_could_not_read_is_left_out(tmp_path: Path) -> None:
    sound = run(tmp_path, "plain", 0, 3)
    shutil.rmtree(tmp_path / "records-0-3")
    found = run(tmp_path, "error", 0, 3)
    assert any("ZeroDivisionError" in error for error in found.errors)
    assert [step.batch for step in found.steps] == [sound.steps[0].batch, sound.steps[2].batch]
