"""Chooses a MASTER_PORT for each job: free, outside the ephemeral range, never reserved for two jobs of this machine.

Any outgoing connection could take a port of the ephemeral range between our choice and its use by rank 0. Another
server could choose the same port in that time, so each port is reserved on the machine: the server binds the UDP port
of the same number while the job runs. The kernel gives this port to one process of any user at a time, and frees it
when the server dies; the TCP port stays free for rank 0.
"""

from __future__ import annotations

import hashlib
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from client_lib.errors import Unavailable

_FIRST, _LAST = 10_000, 65_535  # lower ports are popular with services
_LINUX_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def ephemeral_range() -> tuple[int, int]:
    """First and last port that the system gives to outgoing connections."""
    try:
        first, last = _LINUX_RANGE.read_text("ascii").split()
    except FileNotFoundError:
        names = ["net.inet.ip.portrange.first", "net.inet.ip.portrange.last"]
        command = ["sysctl", "-n", *names]
        first, last = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return int(first), int(last)


def outside(ephemeral: tuple[int, int]) -> list[int]:
    """All ports that jobs may get: those outside of the ephemeral range, or all if there are none."""
    every = range(_FIRST, _LAST + 1)
    return [port for port in every if not ephemeral[0] <= port <= ephemeral[1]] or list(every)


def in_turn(ports: Sequence[int], key: str) -> Iterator[int]:
    """Each of `ports` once, starting at a position that depends on `key`."""
    start = int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big") % len(ports)
    return (ports[(start + step) % len(ports)] for step in range(len(ports)))


def is_free(port: int) -> bool:
    """True if a rank could listen on the port now, on any address, as the TCPStore does."""
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # lingering connections are no obstacle
        if family == socket.AF_INET6:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        try:
            probe.bind(("", port))
            probe.listen(1)
        except OSError:
            return False
    return True


class Ports:
    """The ports of this server's jobs."""

    def __init__(self) -> None:
        self._by_holder: dict[str, _Reserved] = {}
        self._usable: list[int] = []

    def reserve(self, holder: str) -> int:
        """A free port, reserved for this holder until `release`. Raises Unavailable if there is none."""
        self._usable = self._usable or outside(ephemeral_range())
        taken = {held.port for held in self._by_holder.values()}
        for port in in_turn(self._usable, holder):
            lock = _lock(port) if port not in taken and is_free(port) else None
            if lock is not None:
                self._by_holder[holder] = _Reserved(port, lock)
                return port
        raise Unavailable("no TCP port of this machine is free for MASTER_PORT")

    def hold(self, holder: str, port: int) -> None:
        """Reserve the port of a job that was found again, or the port that the user chose.

        It may be reserved on another server, too: then a rank fails to listen on it, and its report names the holder.
        """
        held = self._by_holder.get(holder)
        if held is None or held.port != port:
            self.release(holder)
            self._by_holder[holder] = _Reserved(port, _lock(port))

    def holders_of(self, port: int) -> list[str]:
        return [holder for holder, held in self._by_holder.items() if held.port == port]

    def release(self, holder: str) -> None:
        held = self._by_holder.pop(holder, None)
        if held is not None and held.lock is not None:
            held.lock.close()

    def close(self) -> None:
        for holder in list(self._by_holder):
            self.release(holder)


class _Reserved(NamedTuple):
    port: int
    lock: socket.socket | None
    """None: another process has it."""


def _lock(port: int) -> socket.socket | None:
    """The UDP socket that reserves this port on this machine; None: another process has it."""
    lock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        lock.bind(("127.0.0.1", port))
    except OSError:
        lock.close()
        return None
    return lock
