"""The first cause of errors that PyTorch, Python and the C library raise here and now, not of
texts that were kept once.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from client_lib.spec.wire import Failure
from server_stub.failures.causes import CAUSES, first_cause
from tests.failures.endings import CAUSED

# in one worker of pytest-xdist: all endings are made by one fixture
pytestmark = [pytest.mark.process, pytest.mark.xdist_group("real endings")]

INCOMPLETE = "loads a checkpoint that is incomplete or damaged"
LFS = "loads a git LFS pointer as weights"
INTERFACE = "can't reach a worker over its network interface"
OTHER_MODEL = "prints `Error(s) in loading state_dict`"
SHAPES = "multiplies or adds tensors of other shapes"
TYPES = "mixes tensors of different types"
ENDINGS = {
    # a script's last lines: the symptom of the cause
    "open_many = [open('/dev/null') for _ in range(200)]": "prints `Too many open files`",
    ("open('w', 'w').write('version https://git-lfs.github.com/spec/v1\\n'); torch.load('w')"): LFS,
    "open('s', 'w').write('version https://git-lfs.github.com/spec/v1\\n'); tensors()": LFS,
    **{f"cut({length}); torch.load('c')": INCOMPLETE for length in (0, 1, 10, 300, 5000, -1)},
    **{f"cut({length}, old=True); torch.load('c')": INCOMPLETE for length in (0, 1, 10, 5000, -1)},
    "open('c', 'wb').write(bytes(5000)); torch.load('c')": INCOMPLETE,
    **{f"cut_tensors({length})": INCOMPLETE for length in (0, 20, 500, -1)},
    "os.remove(saved() + '/.metadata'); load({})": INCOMPLETE,
    "os.remove(saved() + '/__0_0.distcp'); load({'w': torch.zeros(9)})": INCOMPLETE,
    "os.truncate(saved() + '/__0_0.distcp', 9); load({'w': torch.zeros(9)})": INCOMPLETE,
    "saved(); load({'v': torch.zeros(9)})": OTHER_MODEL,
    "saved(); load({'w': torch.zeros(8)})": OTHER_MODEL,
    "adam(2).load_state_dict(adam(1).state_dict())": OTHER_MODEL,
    "open('d', 'wb').close(); pickle.load(open('d', 'rb'))": INCOMPLETE,
    "torch.save(Dies(), 'p'); torch.load('p')": "prints `Weights only load failed`",
    "nn.Linear(2, 3).load_state_dict(nn.Linear(2, 4).state_dict())": OTHER_MODEL,
    "nn.Linear(2, 3)(torch.zeros(4, 5))": SHAPES,
    "torch.zeros(3) + torch.zeros(4)": SHAPES,
    "torch.cat([torch.zeros(2, 2), torch.zeros(2, 3)])": SHAPES,
    "torch.zeros(7).view(2, 3)": SHAPES,
    "nn.Conv2d(3, 1, 1)(torch.zeros(1, 1, 2, 2))": SHAPES,
    "nn.Linear(2, 3)(torch.zeros(4, 2).half())": TYPES,
    "nn.Conv2d(1, 1, 1)(torch.zeros(1, 1, 2, 2).double())": TYPES,
    "torch.zeros(2, 2) @ torch.zeros(2, 2).double()": TYPES,
    "os.environ['GLOO_SOCKET_IFNAME'] = 'eth7'; group()": INTERFACE,
    "group(rank=3, world_size=2)": "starts a world of fewer ranks than the job has",
    "group(world_size=2)": "waits for ranks that never join",
    "dist.init_process_group('gloo')": "looks for RANK or WORLD_SIZE, and finds none",
    "dist.all_reduce(torch.zeros(1))": "uses torch.distributed without a process group",
    "list(torch.utils.data.DataLoader(Dies(), num_workers=1))": "loses a DataLoader worker",
    (
        "x = torch.tensor(-1.0, requires_grad=True); nan_check(True); torch.sqrt(x).backward()"
    ): "computes NaN",
    "argparse.ArgumentParser().parse_args(['--lr', '1'])": "prints `unrecognized arguments`",
    "b'\\xc3'.decode('ascii')": "prints text in a C locale",
    "ctypes.CDLL('libmissing.so.1')": "misses a shared library",
    "pickle.loads(b'\\x80\\x09.')": "runs under the wrong Python",
    "os.kill(os.getpid(), 4)": "prints `Illegal instruction`",
}

RUN_ALL = """
import argparse, ctypes, json, os, pickle, resource, sys, tempfile, torch, traceback
import torch.distributed as dist
from datetime import timedelta
from torch import nn

class Dies(torch.utils.data.Dataset):
    def __len__(self): return 1
    def __getitem__(self, index): os._exit(1)

def group(rank=0, world_size=1):
    soon = timedelta(seconds=1)
    if rank:
        dist.ProcessGroupGloo(dist.HashStore(), rank, world_size, soon)
    address = "tcp://127.0.0.1:0"
    dist.init_process_group(
        "gloo", init_method=address, rank=rank, world_size=world_size, timeout=soon
    )

def cut(length, old=False):
    torch.save(torch.zeros(9999), "c", _use_new_zipfile_serialization=not old)
    shorten("c", length)

def shorten(path, length):
    os.truncate(path, length if length >= 0 else os.path.getsize(path) + length)

def cut_tensors(length):
    from safetensors.torch import save_file

    save_file({"w": torch.zeros(999)}, "s")
    shorten("s", length)
    tensors()

def tensors():
    from safetensors.torch import load_file

    load_file("s")

def saved():
    from torch.distributed import checkpoint

    checkpoint.save({"w": torch.zeros(9)}, checkpoint_id="dcp")
    return "dcp"

def load(state):
    from torch.distributed import checkpoint

    checkpoint.load(state, checkpoint_id="dcp")

def adam(layers):
    return torch.optim.Adam([torch.zeros(1, requires_grad=True) for _ in range(layers)])

nan_check = torch.autograd.set_detect_anomaly
resource.setrlimit(resource.RLIMIT_NOFILE, (150, 150))
for code in json.load(sys.stdin):
    with tempfile.TemporaryFile("w+") as output:
        child = os.fork()
        if child == 0:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            try:
                exec(code)
            except Exception:
                traceback.print_exc()
            except SystemExit:
                pass
            sys.stderr.flush()
            os._exit(1)
        status = os.waitpid(child, 0)[1]
        output.seek(0)
        signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        print(json.dumps([code, output.read(), signal]), flush=True)
"""


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Failure]:
    """Each ending as the report of a rank: torch is imported once, and each line runs
    in a fork of that process.
    """
    folder: Path = tmp_path_factory.mktemp("endings")
    ran = subprocess.run(
        [sys.executable, "-c", RUN_ALL],
        input=json.dumps(list(ENDINGS)),
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    return {
        code: Failure(
            rank=0,
            exit_code=128 + signal if signal else 1,
            signal=signal,
            last_lines=output.splitlines()[-40:],
        )
        for code, output, signal in map(json.loads, ran.stdout.splitlines())
    }


@pytest.mark.parametrize("code", ENDINGS)
def test_a_real_ending_has_one_first_cause(code: str, reports: dict[str, Failure]) -> None:
    report = reports[code]
    found = first_cause(report)
    assert found, report.last_lines
    assert found.cause.symptom == ENDINGS[code], report.last_lines


def test_each_cause_is_the_first_of_an_ending(reports: dict[str, Failure]) -> None:
    """A cause that never comes first has a wider one before it, and no rank gets its hint."""
    found = {cause.cause.symptom for cause in map(first_cause, reports.values()) if cause}
    found.update(CAUSED)  # as test_first_cause.py finds
    found.add("is killed by signal 9")
    assert {cause.symptom for cause in CAUSES} == found
