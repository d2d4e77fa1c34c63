"""Functions that stand in a notebook's cells, as jobs: what they define there works in
the worker, and comes back.
"""

from pathlib import Path

import pytest

from client_lib import Client
from tests.notebook.kernel import Notebook

# kernels, and in one test the workers of data loaders
pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]

DEFINES = """
    import pickle
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Net(torch.nn.Module):
        def __init__(self, width=2):
            super().__init__()
            self.layer = torch.nn.Linear(width, 1)

    class Numbers(Dataset):
        def __len__(self):
            return 8
        def __getitem__(self, index):
            return torch.tensor(float(index + OFFSET))

    class Diverged(Exception):
        pass

    OFFSET = 10

    def train(rank, world_size, text='"$5 `x`"'):
        net = Net()
        if rank == 0:
            torch.save(net, "model.pt")
        loader = DataLoader(Numbers(), batch_size=4, num_workers=2, multiprocessing_context="spawn")
        total = sum(batch.sum().item() for batch in loader)
        return rank, world_size, text, total, pickle.loads(pickle.dumps(Net)) is Net

    def fails():
        print("about to fail")
        raise Diverged("loss is nan")
"""
LAUNCHES = """
    from client_lib.notebook import notebook_launcher
    notebook_launcher(train, args=(), num_processes=2)
"""
LOADS = """
    type(torch.load("model.pt", weights_only=False)) is Net
"""
RAISES = """
    from client_lib import Job
    job = Job(script=fails)
    job.submit()
    try:
        job.result()
    except Diverged as error:
        print(repr(error), "from", error.__cause__)
"""


def test_what_a_cell_defines_is_saved_in_the_worker_and_loaded_in_the_notebook(
    client: Client, folder: Path
) -> None:
    notebook = Notebook(folder, DEFINES, LAUNCHES, LOADS, RAISES).run()
    assert notebook.shown(1).splitlines()[-1] == """(0, 2, '"$5 `x`"', 108.0, True)"""
    assert notebook.shown(2) == "True"
    raised = notebook.shown(3)
    assert raised.startswith("Diverged('loss is nan') from rank 0 of job fails-")
    assert 'raise Diverged("loss is nan")' in raised  # the line of the cell
    assert "    about to fail" in raised
