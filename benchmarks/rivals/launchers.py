"""Two processes of one script on this machine, each way as its users start it, run to their end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.kit.processes import free_port

RUN = Path(sys.executable).parent
TORCHX_PYTHON = Path(__file__).resolve().parents[2] / ".venv-bench" / "bin" / "python"
TORCHX = TORCHX_PYTHON.with_name("torchx")
WORLD_SIZE = 2


class RunFailed(RuntimeError):
    """The job did not end well: PyTorch's gloo threads sometimes abort a process
    that is leaving (SIGABRT).
    """


def bare(script: Path, scratch: Path) -> None:
    """The floor: two processes, the environment set by hand."""
    port = free_port()
    ranks = [
        subprocess.Popen(
            [sys.executable, script], env=_environment() | _rank_variables(rank, port), cwd=scratch
        )
        for rank in range(WORLD_SIZE)
    ]
    if any([rank.wait() for rank in ranks]):
        raise RunFailed(f"{script.name} failed in bare processes")


def torchrun(script: Path, scratch: Path) -> None:
    _run(scratch, RUN / "torchrun", "--standalone", f"--nproc-per-node={WORLD_SIZE}", script)


def accelerate(script: Path, scratch: Path) -> None:
    """`--multi_gpu` because on a machine without GPUs `--cpu` starts a single process."""
    _run(
        scratch,
        RUN / "accelerate",
        "launch",
        "--multi_gpu",
        f"--num_processes={WORLD_SIZE}",
        script,
    )


def torchx(script: Path, scratch: Path) -> None:
    arguments = (
        "--scheduler",
        "local_cwd",
        f"--scheduler_args=log_dir={scratch / 'torchx'}",
        "--wait",
    )
    _run(
        scratch,
        TORCHX,
        "run",
        *arguments,
        "dist.ddp",
        "-j",
        f"1x{WORLD_SIZE}",
        "--script",
        script.name,
    )


def torchx_echo(scratch: Path) -> None:
    """A job that does nothing, by the command line."""
    _run(
        scratch, TORCHX, "run", "--scheduler", "local_cwd", "--wait", "utils.echo", "--msg", "hello"
    )


def _run(scratch: Path, *command: object) -> None:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=scratch,
        env=_environment() | {"PATH": f"{RUN}{os.pathsep}{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RunFailed(f"{command[0]} failed:\n{done.stdout[-4000:]}")


def _environment() -> dict[str, str]:
    """Ours, but with bytecode written: without it every first import of a file would be
    measured, in all ways alike.
    """
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _rank_variables(rank: int, port: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(WORLD_SIZE),
        "LOCAL_WORLD_SIZE": str(WORLD_SIZE),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
