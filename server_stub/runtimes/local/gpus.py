"""The GPUs of this machine with the processes that hold their memory, as nvidia-smi lists them."""

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from client_lib.launcher_protocol.processes import content

TIMEOUT_S = 30.0  # a machine with many cards and no persistence daemon takes seconds
FRESH_S = 1.0
_END_S = 1.0
GPU_FIELDS = "index,uuid,name,memory.total,memory.used"
PROCESS_FIELDS = "gpu_uuid,pid,used_memory"


@dataclass(frozen=True)
class GpuProcess:
    pid: int
    used_mib: int | None
    """None: the driver does not report it."""
    program: str = ""

    def __str__(self) -> str:
        program = f" ({self.program})" if self.program else ""
        return (
            f"pid {self.pid}{program} holds "
            f"{'memory' if self.used_mib is None else _amount(self.used_mib)}"
        )


@dataclass(frozen=True)
class Gpu:
    index: int
    """nvidia-smi's number, in the order of the PCI bus."""
    uuid: str
    name: str
    memory_mib: int
    used_mib: int = 0
    holders: tuple[GpuProcess, ...] = ()

    def held(self, least_mib: int) -> str | None:
        """A clause that names the processes which hold at least `least_mib` of the GPU's memory;
        None: no process does. For a GPU that no job has: its holders are foreign processes."""
        heavy = [h for h in self.holders if h.used_mib is None or h.used_mib >= least_mib]
        if heavy:
            return f"GPU {self.index}: " + ", ".join(map(str, heavy))
        if not self.holders and self.used_mib >= max(least_mib, self.memory_mib // 20):
            # processes of other containers and users are not always listed; a driver alone takes
            # less than a twentieth
            return (
                f"GPU {self.index}: {_amount(self.used_mib)} are in use by a process that "
                "nvidia-smi does not list"
            )
        return None


def _amount(mib: int) -> str:
    return f"{mib / 1024:.1f} GiB" if mib >= 1024 else f"{mib} MiB"


def parse(gpus: str, processes: str, name_of: Callable[[int], str]) -> list[Gpu]:
    """The GPUs in nvidia-smi's two answers (csv,noheader,nounits of GPU_FIELDS and PROCESS_FIELDS),
    by index. `name_of`: the program of a pid; "": unknown. Raises ValueError for a line of another
    form."""
    holders: dict[str, list[GpuProcess]] = {}
    for uuid, pid, used in _rows(processes, 3):
        holders.setdefault(uuid, []).append(GpuProcess(int(pid), _number(used), name_of(int(pid))))
    found = [
        Gpu(
            int(index),
            uuid,
            name,
            _number(total) or 0,
            _number(used) or 0,
            tuple(holders.get(uuid, ())),
        )
        for index, uuid, name, total, used in _rows(gpus, 5)
    ]
    return sorted(found, key=lambda gpu: gpu.index)


def _rows(text: str, width: int) -> Iterable[list[str]]:
    for line in filter(None, map(str.strip, text.splitlines())):
        row = [cell.strip() for cell in line.split(",")]
        if len(row) != width:
            raise ValueError(f"nvidia-smi answered {line!r}, which is not of {width} fields")
        yield row


def _number(cell: str) -> int | None:
    """None for `[N/A]`, `[Not Supported]`, `[Insufficient Permissions]`."""
    return None if cell.startswith("[") else int(float(cell))


def visible(gpus: Sequence[Gpu], names: Sequence[str] | None) -> list[Gpu]:
    """The GPUs with these names of CUDA_VISIBLE_DEVICES, where an unknown one
    ends the list; None: all.
    """
    if names is None:
        return list(gpus)
    chosen: list[Gpu] = []
    for name in names:
        gpu = next(
            (
                g
                for g in gpus
                if name == str(g.index) or (name[:4] == "GPU-" and g.uuid.startswith(name))
            ),
            None,
        )
        if gpu is None:
            break
        if gpu not in chosen:
            chosen.append(gpu)
    return chosen


class Gpus:
    """The GPUs of this machine at the last call of `look`."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._asked_at = float("-inf")
        self.known: list[Gpu] = []
        self.failure: str | None = None
        """The reason why nvidia-smi failed last. The GPUs known before stay
        known, but are not handed out.
        """

    async def look(self) -> None:
        """Update `known`, at most once a second. Never raises: see `failure`."""
        if time.monotonic() - self._asked_at < FRESH_S:
            return
        program = shutil.which(self._program)
        try:
            if program is not None:
                # one after the other: cancelling one when the other fails would leave its pipe to a
                # loop that may close
                gpus = await _answer(program, f"--query-gpu={GPU_FIELDS}")
                processes = await _answer(program, f"--query-compute-apps={PROCESS_FIELDS}")
                self.known = parse(gpus, processes, _program_of)
            self.failure = None
        except (OSError, ValueError) as error:  # OSError also: this process has too many open files
            self.failure = str(error)
        self._asked_at = time.monotonic()


def _program_of(pid: int) -> str:
    return content(f"/proc/{pid}/comm").decode("utf-8", "replace").strip()


async def _answer(program: str, query: str) -> str:
    """The output of nvidia-smi. Raises OSError: it can't be started, fails,
    or gives no answer in time.
    """
    try:
        child = await asyncio.create_subprocess_exec(
            program,
            query,
            "--format=csv,noheader,nounits",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
    except OSError as error:  # of another architecture, or the limit of processes is reached
        raise OSError(f"{program} could not be started: {error}") from error
    try:
        output, _ = await asyncio.wait_for(child.communicate(), TIMEOUT_S)
    except asyncio.TimeoutError as error:
        raise OSError(f"{program} gave no answer in {TIMEOUT_S:.0f} s") from error
    finally:
        if child.returncode is None:
            with suppress(ProcessLookupError):
                # child.kill() may take the exit status away from who waits for it
                os.kill(child.pid, signal.SIGKILL)
        with suppress(asyncio.TimeoutError):  # a process stuck in the driver never ends
            # closes its pipe, which another process may hold open
            await asyncio.wait_for(child.communicate(), _END_S)
    text = output.decode("utf-8", "replace")
    if child.returncode:
        raise OSError(f"{program} ended with {child.returncode}: {text.strip()}")
    return text
