"""Kubeflow's local process backend, run by the interpreter of .venv-bench-functions: seconds on
stderr.

It makes a virtual environment for each job, installs the function's packages there, and runs its
torchrun. Installing PyTorch would take minutes and say nothing: a wheel of one script stands for
it, which runs the torchrun that is there. So this is the least that a job can take. What the
function returns is not to be had; it is read from the log.
"""

import os
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import torch
from kubeflow.trainer import CustomTrainer, LocalProcessBackendConfig, TrainerClient

NAME, VERSION = "torch", "0"
SCRIPT = f"""
import os, sys

def main():
    torchrun = [{sys.executable!r}, "-m", "torch.distributed.run"]
    os.execv({sys.executable!r}, [*torchrun, *filter(None, sys.argv[1:])])
"""


def train():
    import torch

    print("version", torch.__version__)


def index(folder: Path) -> str:
    """The URL of a package index with the wheel alone."""
    place = folder / NAME
    place.mkdir()
    wheel = place / f"{NAME}-{VERSION}-py3-none-any.whl"
    info = f"{NAME}-{VERSION}.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("stands_for_torch.py", SCRIPT)
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {VERSION}\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(
            f"{info}/entry_points.txt", "[console_scripts]\ntorchrun = stands_for_torch:main\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    (place / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>')
    return folder.as_uri()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        url = index(Path(scratch))
        environment = {**os.environ, "PET_NPROC_PER_NODE": "2", "PIP_NO_INDEX": "0"}
        trainer = CustomTrainer(
            func=train, packages_to_install=[NAME], pip_index_urls=[url], env=environment
        )
        client = TrainerClient(LocalProcessBackendConfig())
        began = time.perf_counter()
        job = client.train(trainer=trainer, runtime="torch-distributed")
        # sooner than wait_for_job_status, which polls
        lines = list(client.get_job_logs(job, follow=True))
        took = time.perf_counter() - began
    found = [
        line
        for text in lines
        for line in text.splitlines()
        if line == f"version {torch.__version__}"
    ]
    assert len(found) == 2, "\n".join(lines)
    print(took, file=sys.stderr)
