"""This machine: its cores and memory, read once; its GPUs with the processes that hold their
memory, as nvidia-smi lists them; and its ports, of which each job gets one."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from client_lib.errors import Unavailable
from client_lib.launcher_protocol.processes import boot_id, content

GIB = 2**30
TIMEOUT_S = 30.0  # a machine with many cards and no persistence daemon takes seconds
FRESH_S = 1.0
_END_S = 1.0
_FIRST = 10_000
"""Lowest port that jobs get: lower ones are popular with services."""
_LAST = 65_535
"""Highest port that there is."""
_LINUX_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
GPU_FIELDS = "index,uuid,name,memory.total,memory.used"
PROCESS_FIELDS = "gpu_uuid,pid,used_memory"


@dataclass(frozen=True)
class Machine:
    host: str
    loopback: str
    """Name of the network interface that reaches this machine itself."""
    cores: int
    """Number that this process may use."""
    memory_gib: float
    boot_id: str
    """Changes with a reboot, which no process survives."""


def look() -> Machine:
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    # there is no such file without cgroup v2 or in the root group
    limit = content("/sys/fs/cgroup/memory.max").strip()
    if limit.isdigit():  # of this process's control group (a container)
        memory = min(memory, int(limit))
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    return Machine(socket.gethostname(), loopback, cores, memory / GIB, boot_id())


# --- GPUs


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


# --- ports


def ephemeral_range() -> tuple[int, int]:
    """First and last port that the system gives to outgoing connections."""
    try:
        first, last = _LINUX_RANGE.read_text("ascii").split()
    except FileNotFoundError:
        command = ["sysctl", "-n", "net.inet.ip.portrange.first", "net.inet.ip.portrange.last"]
        first, last = subprocess.run(
            command, capture_output=True, text=True, check=True
        ).stdout.split()
    return int(first), int(last)


def outside(ephemeral: tuple[int, int]) -> list[int]:
    """All ports that jobs may get: ports outside of the ephemeral range, or all ports if none is
    outside.
    """
    every = range(_FIRST, _LAST + 1)
    return [port for port in every if not ephemeral[0] <= port <= ephemeral[1]] or list(every)


def in_turn(ports: Sequence[int], key: object) -> Iterator[int]:
    """Each of `ports` once, starting at a position that depends on `key`."""
    start = zlib.crc32(repr(key).encode()) % len(ports)
    return chain(ports[start:], ports[:start])


def is_free(port: int) -> bool:
    """True if a rank could listen on the port now, on any address, as the TCPStore does."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:  # with SO_REUSEADDR: lingering connections are no obstacle
        socket.create_server(("", port), family=family, dualstack_ipv6=both).close()
    except OSError:
        return False
    return True


class Ports:
    """The MASTER_PORTs of this server's jobs: free, outside the ephemeral range, reserved for one
    job of this machine.

    Any outgoing connection could take a port of the ephemeral range between our choice and its use
    by rank 0. Another server could choose this port in that time, so each port is reserved on the
    machine: the server binds the UDP port of the same number while the job runs. The kernel gives
    this port to one process of any user at a time, and frees it when the server dies; the TCP port
    stays free for rank 0.
    """

    def __init__(self) -> None:
        self._reserved: dict[Hashable, tuple[int, socket.socket | None]] = {}
        """Holder -> its port, and the UDP socket that reserves the port; None: another process has
        the UDP port.
        """
        self._usable: list[int] = []

    def reserve(self, holder: Hashable) -> int:
        """A free port, reserved for this holder until `release`. Raises
        Unavailable if there is none.
        """
        self._usable = self._usable or outside(ephemeral_range())
        taken = {port for port, _ in self._reserved.values()}
        for port in in_turn(self._usable, holder):
            lock = _lock(port) if port not in taken and is_free(port) else None
            if lock is not None:
                self._reserved[holder] = port, lock
                return port
        raise Unavailable("no TCP port of this machine is free for MASTER_PORT")

    def hold(self, holder: Hashable, port: int) -> None:
        """Reserve the port of a job that was found again, or that the user chose. Another server
        may have reserved it, too: then a rank fails to listen on it, and its report names the
        holder."""
        if self._reserved.get(holder, (None, None))[0] != port:
            self.release(holder)
            self._reserved[holder] = port, _lock(port)

    def release(self, holder: Hashable) -> None:
        _, lock = self._reserved.pop(holder, (None, None))
        if lock is not None:
            lock.close()

    def close(self) -> None:
        for holder in list(self._reserved):
            self.release(holder)


def _lock(port: int) -> socket.socket | None:
    lock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        lock.bind(("127.0.0.1", port))
    except OSError:
        lock.close()
        return None
    return lock
