"""Checks this machine for problems, with a fix for each; changes nothing.

The service checks the data directory, the database and the retention.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from client_lib.errors import InvalidRequest
from client_lib.spec.wire import Check
from server_stub.runtimes.local.gpus import Gpus
from server_stub.runtimes.local.machine import GIB, Machine
from server_stub.runtimes.local.options import LocalOptions
from server_stub.runtimes.local.scheduling import Capacity

SHM_LEAST_GIB = 1.0  # a DataLoader with workers passes its batches through /dev/shm
MEMORY_LEAST_GIB = 2.0  # a rank that has imported torch takes 0.3 to 1 GiB
_MEMINFO = Path("/proc/meminfo")


def checks(options: LocalOptions, machine: Machine, gpus: Gpus, capacity: Capacity) -> list[Check]:
    """One result per check, good or bad."""
    running = f"{capacity.cpu_jobs} of {capacity.max_cpu_jobs} jobs without GPUs run; {machine.cores} cores"
    return [
        _gpus(options, gpus, capacity),
        _memory(machine),
        _shared_memory(Path("/dev/shm")),
        _launcher(options),
        _accounts(options),
        Check(name="cpu jobs", ok=True, message=running),
    ]


def _gpus(options: LocalOptions, gpus: Gpus, capacity: Capacity) -> Check:
    if gpus.failure is not None:
        return Check(name="gpus", ok=False, message=gpus.failure, fix="run nvidia-smi by hand; reload the driver")
    if shutil.which(options.nvidia_smi) is None:
        return Check(name="gpus", ok=True, message=f"none: there is no {options.nvidia_smi} here; jobs run on the CPU")
    if capacity.held_gpus:
        message = "; ".join(clause for _, clause in sorted(capacity.held_gpus.items()))
        return Check(name="gpus", ok=False, message=message, fix="end those processes: their GPUs are not handed out")
    return Check(name="gpus", ok=True, message=f"{len(capacity.free_gpus)} of {capacity.gpus} are free")


def _memory(machine: Machine) -> Check:
    free = available_gib()
    if free is None:
        return Check(name="memory", ok=True, message=f"{machine.memory_gib:.1f} GiB")
    return Check(
        name="memory",
        ok=free >= MEMORY_LEAST_GIB,
        message=f"{free:.1f} of {machine.memory_gib:.1f} GiB are available",
        fix=None if free >= MEMORY_LEAST_GIB else "end what holds it, or run fewer processes per worker",
    )


def available_gib() -> float | None:
    """Memory available to new processes; None: unknown."""
    try:
        lines = _MEMINFO.read_text("ascii").splitlines()
    except FileNotFoundError:
        return None
    return next((int(line.split()[1]) * 1024 / GIB for line in lines if line.startswith("MemAvailable:")), None)


def _shared_memory(path: Path) -> Check:
    if not path.is_dir():  # macOS
        return Check(name="shared memory", ok=True, message="this system has no /dev/shm; none is needed")
    size = os.statvfs(path)
    free = size.f_bavail * size.f_frsize / GIB
    return Check(
        name="shared memory",
        ok=free >= SHM_LEAST_GIB,
        message=f"{free:.1f} of {size.f_blocks * size.f_frsize / GIB:.1f} GiB of {path} are free",
        fix=None if free >= SHM_LEAST_GIB else f"a larger {path} (docker run --shm-size=8g), or num_workers=0",
    )


def _accounts(options: LocalOptions) -> Check:
    if options.accounts is None:
        return Check(name="accounts", ok=True, message="all jobs run under the account of this server")
    folder = options.settings.data_dir / "jobs"
    try:
        found = options.accounts.all()
    except InvalidRequest as error:
        return Check(name="accounts", ok=False, message=error.message, fix=error.hint)
    bad = [why for account in found if (why := account.why_unusable(folder, options.launcher_python))]
    return Check(
        name="accounts",
        ok=not bad,
        message="; ".join(bad) or f"the jobs of {len(found)} users run under accounts of their own",
        fix="let these accounts enter all folders above" if bad else None,
    )


def _launcher(options: LocalOptions) -> Check:
    found = shutil.which(options.launcher_python) is not None
    return Check(
        name="worker launcher",
        ok=found,
        message=f"runs with {options.launcher_python}" + ("" if found else ", which is not there any more"),
        fix=None if found else "restart the server with the environment that has client-lib",
    )
