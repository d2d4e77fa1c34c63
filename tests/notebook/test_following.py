"""A job followed in a notebook's cell, on a real kernel: what the cell shows meanwhile
and what is saved with it.
"""

from pathlib import Path

import pytest

from client_lib import Client, get_job
from client_lib.log_reading.cell import HEAD_LINES, TAIL_LINES
from client_lib.spec.states import State
from tests.notebook.kernel import Notebook

# kernels, and in one test the workers of data loaders
pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]

SUBMIT = """
    from client_lib import Job
    job = Job(script="train.py", n_workers=2, name={name!r})
    job.submit()
"""
TRAINS = """
import os
from tqdm import tqdm
for epoch in range(2):
    for _ in tqdm(range(40), desc=f"epoch {epoch}", mininterval=0):
        pass
    print("loss <0.25>", flush=True)
"""
TALKS = f"""
import sys
for line in range({HEAD_LINES} + 2000):
    print("line", line)
for step in range(2000):
    print(f"step {{step}}", end="\\r", file=sys.stderr, flush=True)
"""
WAITS = """
import sys, time
print("50%", end="\\r", flush=True)
time.sleep(1.2)  # of a bar one state in a second is kept
print("51%", end="\\r", flush=True)
time.sleep(100)
"""


@pytest.mark.smoke
def test_a_cell_shows_the_lines_below_the_state_and_a_job_is_a_table(
    client: Client, folder: Path
) -> None:
    (folder / "train.py").write_text(TRAINS)
    notebook = Notebook(
        folder, SUBMIT.format(name="bars"), "job.logs()", "job", "job.wait(follow=True).state"
    ).run()
    for cell in (1, 3):
        first, *lines = notebook.shown(cell).splitlines()
        assert first.startswith("SUCCEEDED bars in ")
        for rank in range(2):
            own = [line for line in lines if line.startswith(f"[{rank}]")]
            assert [line.split("%")[0] for line in own if "%" in line] == [
                f"[{rank}] epoch {epoch}: 100" for epoch in range(2)
            ]
            assert own.count(f"[{rank}] loss <0.25>") == 2
    (table,) = notebook.outputs(2)
    assert table.data["text/plain"] == "Job('bars', SUCCEEDED when last asked)"
    for part in ("SUCCEEDED", "2 of this machine: 2 ended", "loss &lt;0.25&gt;"):
        assert part in table.data["text/html"]


def test_what_is_saved_of_a_long_log_is_bounded(client: Client, folder: Path) -> None:
    (folder / "train.py").write_text(TALKS)
    notebook = Notebook(
        folder, SUBMIT.format(name="long").replace("n_workers=2, ", ""), "job.logs()"
    ).run()
    state, *streams, tail = notebook.outputs(1)
    assert state.data["text/plain"].startswith("SUCCEEDED long")
    head = "".join(stream.text for stream in streams).splitlines()
    assert head == [f"[0] line {number}" for number in range(HEAD_LINES)]
    hidden, *last = tail.data["text/plain"].splitlines()
    assert hidden.startswith("… 1,9")
    assert "client-lib logs long" in hidden
    assert len(last) == TAIL_LINES
    assert last[-2:] == ["[0] line 2999", "[0] step 1999"]
    assert notebook.client.messages < 500  # of 3000 lines and 2000 steps


def test_an_interrupted_cell_ends_with_a_sentence_and_the_job_goes_on(
    client: Client, folder: Path
) -> None:
    (folder / "train.py").write_text(WAITS)
    notebook = Notebook(folder, SUBMIT.format(name="sleeps"), "job.logs()", "job.state")
    try:
        notebook.run_and_interrupt(1, when="51%")
        assert "RUNNING sleeps" in notebook.shown(1)
        (error,) = [output for output in notebook.outputs(1) if output.output_type == "error"]
        assert error.traceback == [
            (
                "job sleeps keeps running; `client-lib logs -f sleeps` follows it again, "
                "`client-lib cancel sleeps` stops it"
            )
        ]
        assert "RUNNING" in notebook.shown(2)
        assert get_job("sleeps").state is State.RUNNING
    finally:
        get_job("sleeps").delete(force=True)
