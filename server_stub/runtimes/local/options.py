"""The settings of the local runtime, as values: it reads no environment and no file of settings itself."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class LocalOptions:
    """What an operator can set about jobs on this machine."""

    data_dir: Path
    """The server's data; only looked at by `doctor` (free space): each attempt brings its own directory."""
    catalogue_file: Path | None = None
    """TOML of instance types (server_stub.instances); None: what this machine has."""
    parse_instance_types: bool = True
    """Also accept names by pattern, `a100.8gpu` or `cpu.8C.32G`, that the catalogue doesn't list."""
    max_cpu_jobs: int | None = None
    """Jobs without GPUs that run at the same time; the others wait. None: one per two cores, at least one."""
    max_processes: int = 256
    """Processes (ranks) of one job; more is refused, so that a slip of a digit doesn't take the machine down."""
    nvidia_smi: str = "nvidia-smi"
    """Program that tells which GPUs there are; looked for on PATH. A machine without it has none."""
    gpu_held_mib: int = 100
    """A foreign process that holds less of a GPU's memory than this (MiB) doesn't keep it from being handed out."""
    rank_runner: bool = True
    """False: ranks start as plain `python script`, without the rank runner that saves a third of start and end."""
    warm: bool = False
    """Keep a process per interpreter that has the packages of jobs imported, and fork ranks from it (Linux only)."""
    warm_idle_s: float = 1800.0
    """Such a process ends when no job has asked for it for so long."""
    log_limit_bytes: int = 10 * 2**30
    """Log kept of one worker and attempt: head and tail, the gap is counted."""
    environments_limit_bytes: int = 20 * 2**30
    """Of the environments that `requirements` of jobs were installed into; those not used for longest go first."""
    outputs_limit_bytes: int = 10 * 2**30
    """What is kept of the outputs of a job, of all its workers and attempts together."""
    outputs_every_s: float = 60.0
    """Between two looks for outputs while a job runs."""
    max_result_bytes: int = 2 * 2**30
    """What a function may return in one rank, pickled."""
    segment_bytes: int = 64 * 2**20
    """Size of one log file before the next is begun."""
    launcher_python: str = sys.executable
    """Interpreter of the worker launcher, which needs the standard library only."""
    server_python: str = sys.executable
    """Runs the scripts of requests that name no interpreter of their own."""
