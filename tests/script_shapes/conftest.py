"""Scripts written for other launchers: run under those, and as jobs."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from tests.kit.processes import kill_processes_of

BIN = Path(sys.executable).parent
SCRIPTS = Path(__file__).with_name("scripts")

LIMIT_S = 200.0
_ABORTED = "terminate called without an active exception"
_SPAWNS = "spawned.py"
OURS = "client-lib submit -f -N 2 --processes-per-worker 2"
TORCHRUN = "torchrun --standalone --nproc-per-node"
MARKS = [
    pytest.mark.process,
    pytest.mark.xdist_group("torch scripts"),
    pytest.mark.timeout(4 * LIMIT_S),
]
"""The marks of each module here. Scripts import torch in up to eight processes:
none runs beside another.
"""


class Running:
    """A command whose output goes to files: a process that it leaves
    behind keeps no reader waiting.
    """

    def __init__(self, line: str, folder: Path, environment: Mapping[str, str]) -> None:
        self.line = line
        self._files = [tempfile.TemporaryFile("w+") for _ in range(2)]  # noqa: SIM115  # closed with this object
        out, err = self._files
        self.process = subprocess.Popen(
            line.split(),
            cwd=folder,
            env=environment,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )

    def ended(self, deadline: float) -> bool:
        """Wait until it ends, at most until `deadline`."""
        try:
            self.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    @property
    def printed(self) -> tuple[str, str]:
        """Its standard output and standard error until now."""
        for file in self._files:
            file.seek(0)
        return self._files[0].read(), self._files[1].read()

    @property
    def went_well(self) -> bool:
        """True if it ended with 0. A rank of another launcher, or one that the script
        starts itself, may abort at its exit, as PyTorch's do at times.
        """
        has_our_ranks = self.line.startswith("client-lib") and _SPAWNS not in self.line
        aborted = any(_ABORTED in text for text in self.printed)
        return self.process.returncode == 0 or (not has_our_ranks and aborted)

    def __repr__(self) -> str:
        out, err = self.printed
        return f"{self.line} (exit code {self.process.returncode})\n{out}\n{err}"


class Shell:
    """A folder with the scripts, in an environment where torch is."""

    def __init__(self, folder: Path, state: Path) -> None:
        self.folder = folder
        clean = {
            name: text
            for name, text in os.environ.items()
            if not name.startswith(("CLIENT_LIB_", "ACCELERATE_"))
        }
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

    def start(self, line: str, **variables: str) -> Running:
        return Running(line, self.folder, {**self.environment, **variables})

    def loss(self, *started: Running) -> str:
        """The loss that rank 0 of all these commands printed."""
        deadline = time.monotonic() + LIMIT_S
        try:
            assert all([each.ended(deadline) for each in started]), (
                f"not ended after {LIMIT_S} s: {started}"
            )
        finally:
            for each in started:
                each.kill()
        assert all(each.went_well for each in started), started
        found = re.findall(
            r"loss [\d.]+ of \d+ ranks", "".join(each.printed[0] for each in started)
        )
        assert len(found) == 1, started
        return str(found[0])

    def of(self, line: str, **variables: str) -> str:
        return self.loss(self.start(line, **variables))


@pytest.fixture(scope="session")
def state() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="client_lib-"))
    yield folder
    kill_processes_of(folder)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def shell(tmp_path: Path, state: Path) -> Shell:
    for script in SCRIPTS.glob("*.py"):
        shutil.copy(script, tmp_path)
    return Shell(tmp_path, state)


def at_port(port: int) -> Mapping[str, str]:
    """The environment of a script that is started by hand."""
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
