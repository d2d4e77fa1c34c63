"""`client-lib stacks --native`: a real py-spy in a session of a real job."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from client_lib.cli.commands.status import PY_SPY, check_py_spy
from client_lib.errors import Conflict, NotSupported
from tests.cli.conftest import Run

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(
        sys.platform != "linux", reason="the stacks of processes are taken on Linux alone"
    ),
]
HOLDS_THE_LOCK = """
import ctypes
print("up", flush=True)
while True:  # a signal, also that of `stacks`, ends one sleep
    ctypes.PyDLL(None).sleep(600)
"""
WITH_PY_SPY = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
root = pytest.mark.skipif(
    os.geteuid() != 0, reason="needs root, to trace processes or to give the right up"
)


@pytest.fixture
def running_job(
    cli: Run, commands_here: None, environment: dict[str, str], local_server: Path, tmp_path: Path
) -> Iterator[str]:
    """A job whose rank holds the lock of the interpreter in a function of C."""
    environment |= {"VIRTUAL_ENV": sys.prefix, "CLIENT_LIB_STATE_DIR": str(local_server)}
    (tmp_path / "train.py").write_text(HOLDS_THE_LOCK)
    done = cli("submit", "-o", "name", "--grace-s", "1", "train.py")
    assert done.returncode == 0, done.stderr
    name = done.stdout.strip()
    while "up" not in cli("logs", name).stdout:
        pass
    yield name
    cli("cancel", name)


@root
def test_the_functions_of_c_are_shown(cli: Run, running_job: str) -> None:
    shown = cli("stacks", running_job, "--native")
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert lines[0] == "rank 0"
    function, script = (
        next(i for i, line in enumerate(lines) if text in line)
        for text in ("sleep", "(train.py:5)")
    )
    assert function < script
    found = json.loads(cli("stacks", running_job, "--native", "--rank", "0", "-o", "json").stdout)[
        "processes"
    ]
    assert [each["rank"] for each in found] == [0]
    assert any("sleep" in line for line in found[0]["native"])
    events = cli("status", running_job, "--events").stdout
    assert f"runs `py-spy dump --native --pid {found[0]['pid']}` in rank 0" in events


def test_a_worker_without_py_spy_is_told_so(cli: Run, running_job: str, tmp_path: Path) -> None:
    (tmp_path / "wait").write_text("#!/bin/sh\nexec /bin/sleep 600\n")
    (tmp_path / "wait").chmod(0o755)
    name = cli(
        "submit",
        "-o",
        "name",
        "--type",
        "binary",
        "--grace-s",
        "1",
        "--env",
        "PATH=/usr/bin:/bin",
        "./wait",
    )
    other = name.stdout.strip()
    while not json.loads(cli("stacks", other, "-o", "json").stdout or "{}").get("ranks"):
        pass
    shown = cli("stacks", other, "--native")
    assert shown.returncode != 0
    assert "there is no py-spy for process " in shown.stderr
    assert "`pip install py-spy` in the job's environment or image" in shown.stderr
    cli("cancel", other)


@root
def test_a_worker_that_may_not_trace_is_told_so() -> None:
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    command = [*nobody, *PY_SPY, str(os.getpid())]
    done = subprocess.run(
        command, env=WITH_PY_SPY, capture_output=True, text=True, check=False, timeout=60
    )
    with pytest.raises(NotSupported, match=r"py-spy may not trace process 7 of rank 1") as refused:
        check_py_spy(done.returncode, done.stderr, "process 7 of rank 1")
    assert "SYS_PTRACE" in str(refused.value.hint)


def test_a_process_that_has_ended_is_a_conflict() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    command = [*PY_SPY, str(gone.pid)]
    done = subprocess.run(command, env=WITH_PY_SPY, capture_output=True, text=True, check=False)
    with pytest.raises(
        Conflict, match=r"py-spy took no stacks of process 7: .*Check that the process is running"
    ):
        check_py_spy(done.returncode, done.stderr, "process 7")
