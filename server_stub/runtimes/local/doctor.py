"""Checks this machine for problems, with a fix for each; changes nothing.

The service checks the data directory, the database and the retention.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from client_lib.errors import InvalidRequest
from client_lib.spec.wire import Check
from server_stub.runtimes import checked
from server_stub.runtimes.local.machine import GIB, Gpus, Machine
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
        checked("cpu jobs", running),
    ]


def _gpus(options: LocalOptions, gpus: Gpus, capacity: Capacity) -> Check:
    if gpus.failure is not None:
        return checked("gpus", gpus.failure, "run nvidia-smi by hand; reload the driver")
    if shutil.which(options.nvidia_smi) is None:
        return checked("gpus", f"none: there is no {options.nvidia_smi} here; jobs run on the CPU")
    if capacity.held_gpus:
        message = "; ".join(clause for _, clause in sorted(capacity.held_gpus.items()))
        return checked("gpus", message, "end those processes: their GPUs are not handed out")
    return checked("gpus", f"{len(capacity.free_gpus)} of {capacity.gpus} are free")


def _memory(machine: Machine) -> Check:
    free = available_gib()
    if free is None:
        return checked("memory", f"{machine.memory_gib:.1f} GiB")
    fix = None if free >= MEMORY_LEAST_GIB else "end what holds it, or run fewer processes per worker"
    return checked("memory", f"{free:.1f} of {machine.memory_gib:.1f} GiB are available", fix)


def available_gib() -> float | None:
    """Memory available to new processes; None: unknown."""
    try:
        lines = _MEMINFO.read_text("ascii").splitlines()
    except FileNotFoundError:
        return None
    return next((int(line.split()[1]) * 1024 / GIB for line in lines if line.startswith("MemAvailable:")), None)


def _shared_memory(path: Path) -> Check:
    if not path.is_dir():  # macOS
        return checked("shared memory", "this system has no /dev/shm; none is needed")
    size = os.statvfs(path)
    free = size.f_bavail * size.f_frsize / GIB
    message = f"{free:.1f} of {size.f_blocks * size.f_frsize / GIB:.1f} GiB of {path} are free"
    fix = None if free >= SHM_LEAST_GIB else f"a larger {path} (docker run --shm-size=8g), or num_workers=0"
    return checked("shared memory", message, fix)


def _accounts(options: LocalOptions) -> Check:
    if options.accounts is None:
        return checked("accounts", "all jobs run under the account of this server")
    folder = options.settings.data_dir / "jobs"
    try:
        found = options.accounts.all()
    except InvalidRequest as error:
        return Check(name="accounts", ok=False, message=error.message, fix=error.hint)
    bad = [why for account in found if (why := account.why_unusable(folder, options.launcher_python))]
    if bad:
        return checked("accounts", "; ".join(bad), "let these accounts enter all folders above")
    return checked("accounts", f"the jobs of {len(found)} users run under accounts of their own")


def _launcher(options: LocalOptions) -> Check:
    message = f"runs with {options.launcher_python}"
    if shutil.which(options.launcher_python) is None:
        fix = "restart the server with the environment that has client-lib"
        return checked("worker launcher", f"{message}, which is not there any more", fix)
    return checked("worker launcher", message)
