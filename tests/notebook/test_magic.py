"""`%%job` on a real kernel: a cell as a job."""

from pathlib import Path

import pytest
from nbclient.exceptions import CellExecutionError

from client_lib import Client, get_job
from tests.notebook.kernel import Notebook

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]

LOAD = "%load_ext client_lib"
CELL = """%%job -N 2 --name {name} {script} --epochs 3
import os, sys
print(os.environ["RANK"], sys.argv[1:])
{more}"""


def test_a_cell_runs_as_a_job_with_the_options_of_submit(client: Client, folder: Path) -> None:
    cell = CELL.format(name="magic", script="train.py", more="")
    log = "import logging\nlog = logging.getLogger('client_lib')\n"
    cells = (
        f"{log}log.setLevel('ERROR')",
        LOAD,
        cell,
        "_.name, _.info().spec.n_workers",
        "log.handlers, log.level",
    )
    notebook = Notebook(folder, *cells).run()
    assert {f"[{rank}] {rank} ['--epochs', '3']" for rank in (0, 1)} <= set(
        notebook.shown(2).splitlines()
    )
    assert notebook.shown(3) == "('magic', 2)"
    assert notebook.shown(4) == "([], 40)", "the logger is as it was before the cell"
    assert (folder / "train.py").read_text() == cell.partition("\n")[2]
    assert get_job("magic", client=client).info().spec.args == ["--epochs", "3"]


def test_its_failure_is_a_report_without_a_traceback_of_ours(client: Client, folder: Path) -> None:
    cell = CELL.format(name="broken", script="train.py", more="raise KeyError('lr')")
    notebook = Notebook(folder, LOAD, cell)
    with pytest.raises(CellExecutionError):
        notebook.run()
    assert "KeyError: 'lr'" in notebook.shown(1)
    assert "commands/run.py" not in notebook.shown(1)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("%%job --workers 2", "No such option: --workers"),
        ("%%job -N two", "'two' is not a valid int"),
        (
            "%%job torchrun train.py",
            "%%job saves the cell as SCRIPT, and torchrun does not end in .py",
        ),
        ("%%job train.py --note it's", "UsageError: "),
    ],
)
def test_a_wrong_line_is_named_and_writes_nothing(folder: Path, line: str, said: str) -> None:
    notebook = Notebook(folder, LOAD, f"{line}\nprint(1)")
    with pytest.raises(CellExecutionError):
        notebook.run()
    assert said in notebook.shown(1)
    assert list(folder.glob("*.py")) == []
