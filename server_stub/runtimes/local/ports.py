"""The ports of this machine, of which each job gets one."""

import socket
import subprocess
import zlib
from collections.abc import Hashable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from client_lib.errors import Unavailable

_FIRST = 10_000
"""Lowest port that jobs get: lower ones are popular with services."""
_LAST = 65_535
"""Highest port that there is."""
_LINUX_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


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
