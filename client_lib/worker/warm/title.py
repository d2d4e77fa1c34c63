"""What others see of a forked rank: its command line, and in its environment the mark of its worker.

/proc/<pid>/cmdline and environ show the memory where exec has put them, of the pool. A pool is started with room in
both, and a rank writes its own there. Standard library only, Python >= 3.8.
"""

import ctypes
from typing import List

ROOM = "." * 4096


def relabel(argv: List[str], marker: str, value: str) -> None:
    """Show `argv`, cut where there is no room, and `marker=value` in the place of the pool's variable `marker`."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    arg_start, arg_end, env_start, env_end = (int(field) for field in fields[45:49])
    shown = b"".join(argument.encode("utf-8", "surrogateescape") + b"\0" for argument in argv)
    _write(arg_start, shown, arg_end - arg_start)
    beginning = ("%s=" % marker).encode()
    entries = ctypes.string_at(env_start, env_end - env_start)
    at = entries.find(beginning + ROOM.encode())
    if at >= 0:
        room = len(beginning) + len(ROOM)
        _write(env_start + at, beginning + value.encode("utf-8", "surrogateescape"), room)


def _write(address: int, content: bytes, room: int) -> None:
    content = content[: room - 1]
    ctypes.memmove(address, content + b"\0" * (room - len(content)), room)
