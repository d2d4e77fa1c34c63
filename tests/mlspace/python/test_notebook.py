"""The documented way: a notebook in the script's folder submits it by its
absolute path. On a real kernel.
"""

from collections.abc import Sequence
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from client_lib import Client
from tests.mlspace.python import scripts

pytestmark = pytest.mark.process

CELLS = [
    """
import os
import client_lib

job = client_lib.Job(
    base_image="cr.ai.cloud.ru/aicloud-base-images/py3.12-torch2.7.0:0.0.41",
    script=os.path.join(os.getcwd(), "train.py"),
    instance_type="a100plus.1gpu.80vG.12C.96G",
    region="SR006",
    type="pytorch2",
    n_workers=2,
    pytorch_use_env=True,
)
job.submit()""",
    "job.status()",
    "job.logs()",
    "job.status()",
    "client_lib.jobs(region='SR006')",
    "client_lib.get_instance_types().query('region == \"SR006\"')",
    "job.kill()",
    "job.job_name",
]


@pytest.fixture
def outputs(
    client: Client, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """The output of each cell as text; the kernel asks the real local server."""
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "jupyter"))
    (folder / "train.py").write_text(scripts.TRAIN)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    NotebookClient(notebook, timeout=90, resources={"metadata": {"path": str(folder)}}).execute()
    return [_shown(cell.outputs) for cell in notebook.cells]


def _shown(outputs: Sequence[nbformat.NotebookNode]) -> str:
    parts = [
        o.text if o.output_type == "stream" else o.data["text/plain"]
        for o in outputs
        if o.get("name") != "stderr"
    ]
    return "".join(parts)


def test_a_documented_script_runs_unchanged_from_a_notebook_beside_it(
    outputs: list[str], folder: Path
) -> None:
    created, early, log, late, listed, types, killed, named = outputs
    name = named.strip("'")
    assert name.startswith("lm-mpi-job-")
    assert created == f"'Job \"{name}\" created.'"
    assert early in [f"'Job status={word}'" for word in ("Pending", "Running")]
    for rank in range(2):
        assert f"trained {rank} of 2 local 0" in log
        assert f"epoch 1 rank {rank} loss" in log
    assert late == "'Job status=Completed'"
    assert f" : {name} : Completed\n" in listed
    assert types.startswith("region  instance_type")
    assert killed == f"'Job \"{name}\" deleted'"
    written = (folder / "train.log").read_text().splitlines()
    assert sorted(line.rsplit(" loss")[0] for line in written if line.startswith("epoch")) == [
        f"epoch {epoch} rank {rank}" for epoch in range(2) for rank in range(2)
    ]
