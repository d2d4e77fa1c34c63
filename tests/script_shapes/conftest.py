"""Scripts written for other launchers: run under those, and as jobs of two workers of two processes."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.cli.conftest import processes_of

BIN = Path(sys.executable).parent
SCRIPTS = Path(__file__).with_name("scripts")

_ABORTED = "terminate called without an active exception"
OURS = "client-lib submit -f -N 2 --processes-per-worker 2"
TORCHRUN = "torchrun --standalone --nproc-per-node 4"


class Shell:
    """A folder with the scripts, in an environment where torch is."""

    def __init__(self, folder: Path, state: Path) -> None:
        self.folder = folder
        clean = {name: text for name, text in os.environ.items() if not name.startswith(("CLIENT_LIB_", "ACCELERATE_"))}
        self.environment = clean | {
            "PATH": os.pathsep.join([str(BIN), os.environ["PATH"]]),
            "VIRTUAL_ENV": sys.prefix,
            "CLIENT_LIB_STATE_DIR": str(state),
            "CLIENT_LIB_CONFIG": str(state / "config.toml"),
            "HF_HOME": str(state / "huggingface"),
            "CUDA_VISIBLE_DEVICES": "",
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
        }

    def start(self, line: str, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            line.split(),
            cwd=self.folder,
            env={**self.environment, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def loss(self, *started: subprocess.Popen[str]) -> str:
        """What rank 0 of all these processes printed."""
        outputs = [process.communicate(timeout=250) for process in started]
        assert all(map(_went_well, started, [err for _, err in outputs])), (started, outputs)
        found = re.findall(r"loss [\d.]+ of \d+ ranks", "".join(out for out, _ in outputs))
        assert len(found) == 1, outputs
        return str(found[0])

    def of(self, line: str, **variables: str) -> str:
        return self.loss(self.start(line, **variables))


def _went_well(process: subprocess.Popen[str], stderr: str) -> bool:
    """Of what ours is compared with, a rank that has done its work may abort at its exit, as PyTorch's do at times."""
    is_ours = str(process.args).startswith("['client-lib'")
    return process.returncode == 0 or (not is_ours and _ABORTED in stderr)


@pytest.fixture(scope="session")
def state() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="client_lib-"))
    yield folder
    for pid in processes_of(folder):
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def shell(tmp_path: Path, state: Path) -> Shell:
    for script in SCRIPTS.iterdir():
        shutil.copy(script, tmp_path)
    return Shell(tmp_path, state)


def at_port(port: int) -> Mapping[str, str]:
    """The environment of a script that is started by hand."""
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
