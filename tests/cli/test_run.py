"""`client-lib run`: a job in the foreground, with the real local server and a real terminal."""

import json
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.kit.processes import kill_processes_of, processes_of

from .conftest import CLI, Run
from .terminal import Terminal

WITHIN_S = 30.0

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform == "win32", reason="jobs don't run on Windows itself"),
]


@pytest.fixture(scope="module")
def state() -> Iterator[Path]:
    with TemporaryDirectory(prefix="client_lib-") as folder:
        yield Path(folder)
        kill_processes_of(Path(folder))


@pytest.fixture
def shell(environment: dict[str, str], state: Path) -> dict[str, str]:
    del environment["CLIENT_LIB_RETRY_S"]
    environment["VIRTUAL_ENV"] = sys.prefix
    environment["CLIENT_LIB_STATE_DIR"] = str(state)
    return environment


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "train.py"


def ranks_of(state: Path) -> list[int]:
    return [
        pid
        for pid in processes_of(state)
        if b"train.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]


def test_a_breakpoint_is_talked_to_on_the_terminal(shell: dict[str, str], script: Path) -> None:
    script.write_text("lr = 0.25\nbreakpoint()\nprint('goes on with', lr)\n")
    with Terminal(
        "run", "--name", "stops", "train.py", environment=shell, cwd=script.parent
    ) as terminal:
        terminal.read_until(b"(Pdb)")
        terminal.write(b"lr * 2\n")
        terminal.read_until(b"0.5")
        terminal.write(b"lr = 7\n")
        terminal.write(b"continue\n")
        shown = terminal.read_to_end()
    assert b"goes on with 7" in shown
    assert terminal.exit_code == 0


SAVES = """
import os, signal, sys, time
def leave(signum, frame):
    print("saves at", signum, flush=True)
    time.sleep(0.2)
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
try:
    print("begins", flush=True)
    time.sleep(600)
except KeyboardInterrupt:
    print("is interrupted", flush=True)
    time.sleep(float(sys.argv[1]))
    open("saved", "w").close()
    print("saved", flush=True)
    raise
finally:
    print("ends", flush=True)
"""


def test_ctrl_c_interrupts_the_script_and_shows_its_last_words(
    shell: dict[str, str], cli: Run, script: Path, state: Path
) -> None:
    script.write_text(SAVES)
    line = ["run", "--name", "interrupted", "--processes-per-worker", "2", "train.py", "0.5"]
    with Terminal(*line, environment={**shell, "NO_COLOR": "1"}, cwd=script.parent) as terminal:
        terminal.read_until(b"[1] begins")
        terminal.read_until(b"[0] begins")
        terminal.write(b"\x03")
        shown = terminal.read_to_end()
    assert terminal.exit_code == 130
    for rank in (b"[0] ", b"[1] "):
        for words in (b"is interrupted", b"saved", b"ends"):
            assert rank + words in shown
    assert b"saves at 15" not in shown
    assert b"job interrupted was cancelled" in shown
    assert b"keeps running" not in shown
    assert (script.parent / "saved").exists()
    assert json.loads(cli("status", "interrupted", "-o", "json").stdout)["state"] == "CANCELLED"
    assert ranks_of(state) == []


def test_a_second_ctrl_c_is_sigterm_and_ends_the_command(
    shell: dict[str, str], cli: Run, script: Path
) -> None:
    script.write_text(SAVES)
    line = ["run", "--name", "twice", "train.py", "600"]
    with Terminal(*line, environment={**shell, "NO_COLOR": "1"}, cwd=script.parent) as terminal:
        terminal.read_until(b"begins")
        terminal.write(b"\x03")
        terminal.read_until(b"is interrupted")
        terminal.write(b"\x03")
        terminal.read_to_end()
    assert terminal.exit_code == 130
    assert cli("wait", "twice").returncode != 0
    assert "saves at 15" in cli("logs", "twice").stdout
    assert json.loads(cli("status", "twice", "-o", "json").stdout)["state"] == "CANCELLED"


def test_a_closed_terminal_is_sigterm_for_the_script(
    shell: dict[str, str], cli: Run, script: Path
) -> None:
    script.write_text(SAVES)
    line = ["run", "--name", "closed", "train.py", "0"]
    with Terminal(*line, environment={**shell, "NO_COLOR": "1"}, cwd=script.parent) as terminal:
        terminal.read_until(b"begins")
        terminal.hang_up(times=2)  # by the kernel and by the shell
        terminal.read_to_end()
    assert cli("wait", "closed").returncode != 0
    assert "saves at 15" in cli("logs", "closed").stdout


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("ends", "code"),
    [("raise SystemExit(7)", 7), ("raise KeyError('lr')", 1), ("os.kill(os.getpid(), 9)", 137)],
)
def test_the_exit_code_is_that_of_the_first_failing_rank(
    shell: dict[str, str], cli: Run, script: Path, ends: str, code: int
) -> None:
    script.write_text(
        f"import os, time\nif os.environ['RANK'] == '1':\n    {ends}\ntime.sleep(600)\n"
    )
    done = cli("run", "--processes-per-worker", "2", "--grace-s", "1", "train.py")
    assert done.returncode == code
    assert "rank 1 on worker 0" in done.stderr


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (["-N", "2"], "Connection refused"),
        (["--processes-per-worker", "2"], "[gloo] Timed out waiting 30000ms for recv operation"),
        (["--processes-per-worker", "2"], "NCCL error in: a"),
    ],
    ids=["two-workers", "one-worker", "one-worker-nccl"],
)
def test_the_rank_that_raised_is_named_though_its_peer_was_gone_first(
    shell: dict[str, str], cli: Run, run_here: Run, script: Path, size: list[str], text: str
) -> None:
    script.write_text(
        "import atexit, os, time\n"
        "if os.environ['RANK'] == '1':\n"
        "    atexit.register(time.sleep, 0.6)\n"
        "    open('raises', 'w').close()\n"
        "    raise KeyError('learning_rate')\n"
        "while not os.path.exists('raises'):\n"
        "    time.sleep(0.01)\n"
        "time.sleep(0.2)\n"
        f"raise RuntimeError({text!r})\n"
    )
    worker, name = (1 if size[0] == "-N" else 0), f"guilty-{uuid.uuid4().hex[:8]}"
    done = cli("run", "--name", name, *size, "train.py")
    assert done.returncode == 1
    assert f"rank 1 on worker {worker} ended with exit code 1" in done.stderr
    info = json.loads(run_here("status", name, "-o", "json").stdout)
    assert info["message"] == "rank 1 ended with exit code 1: KeyError: 'learning_rate'"
    failure = info["failure"]
    assert (failure["worker"], failure["rank"], failure["exception"]) == (
        worker,
        1,
        "KeyError: 'learning_rate'",
    )
    assert f"rank 1 on worker {worker}" in run_here("explain", name).stdout
    assert f"rank 1 on worker {worker}" in run_here("wait", name).stderr


def test_rank_0_reads_what_is_piped_in_and_the_others_nothing(
    shell: dict[str, str], cli: Run, script: Path
) -> None:
    script.write_text(
        "import os, sys; print(os.environ.get('CLIENT_LIB_STDIN'), sys.stdin.read().split())"
    )
    done = cli("run", "-N", "2", "train.py", stdin="first second")
    assert sorted(done.stdout.splitlines()) == ["[0] None ['first', 'second']", "[1] None []"]
    done = cli("submit", "-f", "train.py", stdin="first second")
    assert done.stdout.splitlines() == ["[0] None []"]


@pytest.mark.smoke
def test_a_launchers_line_runs_too(shell: dict[str, str], cli: Run, script: Path) -> None:
    script.write_text("import os; print(os.environ['RANK'], os.environ['WORLD_SIZE'])")
    done = cli("run", "torchrun", "--standalone", "--nproc_per_node=2", "train.py")
    assert sorted(done.stdout.splitlines()) == ["[0] 0 2", "[1] 1 2"]


@pytest.mark.smoke
def test_a_python_line_runs_as_in_a_shell(shell: dict[str, str], cli: Run, script: Path) -> None:
    script.write_text("import os; print(os.environ.get('RANK'), os.environ.get('WORLD_SIZE'))")
    assert cli("run", "python", "train.py", RANK="3", WORLD_SIZE="8").stdout == "[0] None None\n"
    assert cli("run", "-t", "binary", "python", "train.py").stdout == "[0] None None\n"
    assert cli("run", "train.py").stdout == "[0] 0 1\n"
    assert sorted(cli("run", "-N", "2", "python", "train.py").stdout.splitlines()) == [
        "[0] 0 2",
        "[1] 1 2",
    ]


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])
def test_a_program_that_is_told_to_end_takes_its_job_along(
    shell: dict[str, str], cli: Run, script: Path, state: Path, signum: signal.Signals
) -> None:
    script.write_text("import time; print('begins', flush=True); time.sleep(600)")
    name = f"told-{signum.name.lower()}"
    line = [*CLI, "run", "--name", name, "train.py"]
    options: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    # the tests may run under nohup
    options["preexec_fn"] = lambda: signal.signal(signum, signal.SIG_DFL)
    with subprocess.Popen(line, cwd=script.parent, env=shell, **options) as run:
        assert run.stdout
        assert b"begins" in run.stdout.readline()
        run.send_signal(signum)
        assert run.wait(WITHIN_S) == 128 + signum
    assert cli("wait", name).returncode == 3
    assert ranks_of(state) == []


def test_a_signal_that_is_ignored_ends_no_job(shell: dict[str, str], script: Path) -> None:
    script.write_text(
        "import os, time\nprint('begins', flush=True)\nwhile not os.path.exists('go'): "
        "time.sleep(0.05)"
    )
    line = ["nohup", *CLI, "run", "train.py"]
    with subprocess.Popen(
        line, cwd=script.parent, env=shell, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as run:
        assert run.stdout
        assert b"begins" in run.stdout.readline()
        run.send_signal(signal.SIGHUP)
        time.sleep(0.5)
        (script.parent / "go").touch()
        assert run.wait(WITHIN_S) == 0


def test_a_reader_that_leaves_takes_the_job_along(
    shell: dict[str, str], cli: Run, script: Path
) -> None:
    script.write_text("import time\nwhile True: print('step', flush=True); time.sleep(0.05)")
    line = " ".join([*CLI, "run", "--name", "run-piped", "train.py", "|", "head", "-1"])
    subprocess.run(
        ["bash", "-c", line],
        cwd=script.parent,
        env=shell,
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert cli("wait", "run-piped").returncode == 3
